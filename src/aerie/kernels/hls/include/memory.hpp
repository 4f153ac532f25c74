// K8, K10a and K10b: slot lists read from the request-to-slot table, fresh slots written to it.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ragged.hpp"

namespace aerie {

// ---- K8 ----

inline std::int32_t count_visible(const std::uint8_t* mask, std::int32_t F) {
    std::int32_t n = 0;
count_columns:
    for (std::int32_t f = 0; f < Config::MAX_FED; ++f) {
#pragma HLS PIPELINE II=1
        if (f >= F) {
            break;
        }
        n += mask[f] != 0 ? 1 : 0;
    }
    return n;
}

// The fed nodes the mask shows, in fed order. Returns how many.
inline std::int32_t copy_visible(const std::uint8_t* mask, const std::int32_t* fed_slots,
                                 std::int32_t F, std::int32_t* out) {
    std::int32_t n = 0;
copy_columns:
    for (std::int32_t f = 0; f < Config::MAX_FED; ++f) {
#pragma HLS PIPELINE II=1
        if (f >= F) {
            break;
        }
        if (mask[f] != 0) {
            out[n] = fed_slots[f];
            ++n;
        }
    }
    return n;
}

inline void compute_kv_indices(std::int32_t B, std::int32_t W, std::int32_t F, std::int32_t P,
                               std::int32_t L, std::int32_t kv_capacity,
                               std::int32_t has_tree_mask, std::int32_t /*has_fed_slots*/,
                               const std::int32_t* req_to_token,
                               const std::int64_t* req_pool_indices, const std::int64_t* seq_len,
                               const std::uint8_t* tree_mask, const std::int32_t* fed_slots,
                               std::int32_t* kv_indptr, std::int32_t* kv_indices,
                               std::int32_t* status, std::int64_t* detail) {
    // The card gives both arrays or neither.
    const bool is_draft = has_tree_mask != 0;
    fill<std::int32_t>(kv_indices, kv_capacity, -1);
    std::int64_t asked = 0;
    kv_indptr[0] = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Refusal refusal;
        check_table(refusal, req_pool_indices[b], seq_len[b], 0, P, L);
        if (!is_refused(refusal)) {
        count_lists:
            for (std::int32_t t = 0; t < Config::MAX_WIDTH; ++t) {
                if (t >= W) {
                    break;
                }
                asked += seq_len[b];
                if (is_draft) {
                    asked += count_visible(tree_mask + place(place(b, W, t), F, 0), F);
                }
            }
            if (asked > kv_capacity) {
                refuse(refusal, Status::KV_CAPACITY, asked);
            }
        }
        status[b] = refusal.status;
        detail[b] = refusal.detail;
    emit_lists:
        for (std::int32_t t = 0; t < Config::MAX_WIDTH; ++t) {
            if (t >= W) {
                break;
            }
            const std::int64_t list = place(b, W, t);
            std::int32_t* out = kv_indices + kv_indptr[list];
            std::int32_t n = 0;
            if (!is_refused(refusal)) {
                copy_slots(req_to_token + place(req_pool_indices[b], L, 0), seq_len[b], out);
                n = static_cast<std::int32_t>(seq_len[b]);
                if (is_draft) {
                    n += copy_visible(tree_mask + place(list, F, 0), fed_slots + place(b, F, 0),
                                      F, out + n);
                }
            }
            kv_indptr[list + 1] = kv_indptr[list] + n;
        }
    }
}

// ---- K10a and K10b ----

// What both assignments ask of a span before they write it.
inline void check_span(Refusal& refusal, const std::int64_t* req_pool_indices,
                       const std::int64_t* start, const std::int64_t* end, std::int32_t b,
                       std::int32_t B, std::int32_t P, std::int32_t L) {
    const std::int64_t pool_row = req_pool_indices[b];
    if (pool_row < 0 || pool_row >= P) {
        refuse(refusal, Status::TABLE_ROW, pool_row);
    }
    if (start[b] < 0 || start[b] > end[b] || end[b] > L) {
        refuse(refusal, Status::OUT_OF_RANGE, start[b] < 0 ? start[b] : end[b]);
    }
    std::int32_t writers = 0;
count_writers:
    for (std::int32_t other = 0; other < Config::MAX_BATCH; ++other) {
#pragma HLS PIPELINE II=1
        if (other >= B) {
            break;
        }
        if (end[other] > start[other] && req_pool_indices[other] == pool_row) {
            ++writers;
        }
    }
    if (end[b] > start[b] && writers > 1) {
        refuse(refusal, Status::DUPLICATE_REQUEST, pool_row);
    }
}

// The first negative one of n slots.
inline void check_slots(Refusal& refusal, const std::int32_t* slots, std::int64_t n) {
find_negative:
    for (std::int64_t i = 0; i < Config::MAX_POOL; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        if (slots[i] < 0) {
            refuse(refusal, Status::BROKEN_LAYOUT, slots[i]);
        }
    }
}

inline void write_span(std::int32_t* table_row, const std::int32_t* slots, std::int64_t start,
                       std::int64_t end) {
write_slot:
    for (std::int64_t i = 0; i < Config::MAX_TABLE_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= end - start) {
            break;
        }
        table_row[start + i] = slots[i];
    }
}

inline void assign_draft_cache_locs_operator_check(
    std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t T,
    const std::int32_t* /*req_to_token*/, const std::int64_t* req_pool_indices,
    const std::int64_t* start, const std::int64_t* end, const std::int32_t* out_cache_loc,
    std::int32_t* status, std::int64_t* detail) {
check_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Refusal refusal;
        check_span(refusal, req_pool_indices, start, end, b, B, P, L);
        const std::int64_t needed = span_of(start[b], end[b]);
        if (needed > T) {
            refuse(refusal, Status::SLOT_CAPACITY, needed);
        }
        check_slots(refusal, out_cache_loc + place(b, T, 0), clamped(needed, 0, T));
        status[b] = refusal.status;
        detail[b] = refusal.detail;
    }
}

inline void assign_draft_cache_locs_operator(std::int32_t B, std::int32_t P, std::int32_t L,
                                             std::int32_t T, std::int32_t* req_to_token,
                                             const std::int64_t* req_pool_indices,
                                             const std::int64_t* start, const std::int64_t* end,
                                             const std::int32_t* out_cache_loc,
                                             std::int32_t* status, std::int64_t* detail) {
    assign_draft_cache_locs_operator_check(B, P, L, T, req_to_token, req_pool_indices, start, end,
                                           out_cache_loc, status, detail);
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        if (status[b] == 0) {
            write_span(req_to_token + place(req_pool_indices[b], L, 0),
                       out_cache_loc + place(b, T, 0), start[b], end[b]);
        }
    }
}

// Slots of the flat list taken up to and including request b, refused ones included. A sum that
// would wrap into the list again stays at the largest number.
inline std::int64_t taken_with(std::int64_t taken, const std::int64_t* start,
                               const std::int64_t* end, std::int32_t b) {
    return saturating_sum(taken, span_of(start[b], end[b]));
}

inline void assign_req_to_token_pool_operator_check(
    std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t C,
    const std::int32_t* /*req_to_token*/, const std::int64_t* req_pool_indices,
    const std::int64_t* start, const std::int64_t* end, const std::int32_t* out_cache_loc,
    std::int32_t* status, std::int64_t* detail) {
    std::int64_t taken = 0;
check_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Refusal refusal;
        check_span(refusal, req_pool_indices, start, end, b, B, P, L);
        const std::int64_t first = clamped(taken, 0, C);
        taken = taken_with(taken, start, end, b);
        if (taken > C) {
            refuse(refusal, Status::SLOT_CAPACITY, taken);
        }
        check_slots(refusal, out_cache_loc + first, clamped(taken, first, C) - first);
        status[b] = refusal.status;
        detail[b] = refusal.detail;
    }
}

inline void assign_req_to_token_pool_operator(std::int32_t B, std::int32_t P, std::int32_t L,
                                              std::int32_t C, std::int32_t* req_to_token,
                                              const std::int64_t* req_pool_indices,
                                              const std::int64_t* start, const std::int64_t* end,
                                              const std::int32_t* out_cache_loc,
                                              std::int32_t* status, std::int64_t* detail) {
    assign_req_to_token_pool_operator_check(B, P, L, C, req_to_token, req_pool_indices, start,
                                            end, out_cache_loc, status, detail);
    std::int64_t taken = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        if (status[b] == 0) {
            write_span(req_to_token + place(req_pool_indices[b], L, 0), out_cache_loc + taken,
                       start[b], end[b]);
        }
        taken = taken_with(taken, start, end, b);
    }
}

}  // namespace aerie
