// K8, K10a and K10b: slot lists read from the request-to-slot table, fresh slots written to it.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ports.hpp"
#include "ragged.hpp"

namespace aerie {

// ---- K8 ----

// What the frontier of one request sees, on chip.
struct Frontier {
    std::uint8_t masks[Config::MAX_WIDTH * Config::MAX_FED];
    std::int32_t fed_slots[Config::MAX_FED];
    std::int64_t first[Config::MAX_WIDTH];  // where each list begins
};

inline std::int32_t count_visible(const Frontier& frontier, std::int32_t t, std::int32_t F) {
    std::int32_t n = 0;
count_columns:
    for (std::int32_t f = 0; f < Config::MAX_FED; ++f) {
#pragma HLS PIPELINE II=1
        if (f >= F) {
            break;
        }
        n += frontier.masks[place(t, F, f)] != 0 ? 1 : 0;
    }
    return n;
}

// The fed nodes a slot's mask shows, in fed order.
inline void copy_visible(const Frontier& frontier, std::int32_t t, std::int32_t F,
                         Out<std::int32_t> out) {
    std::int32_t n = 0;
copy_columns:
    for (std::int32_t f = 0; f < Config::MAX_FED; ++f) {
#pragma HLS PIPELINE II=1
        if (f >= F) {
            break;
        }
        if (frontier.masks[place(t, F, f)] != 0) {
            out[n] = frontier.fed_slots[f];
            ++n;
        }
    }
}

// The prefix goes to every list of the request; it is read once.
inline void copy_prefix(In<std::int32_t> slots, std::int64_t n, const Frontier& frontier,
                        std::int32_t W, Out<std::int32_t> kv_indices) {
copy_prefix_slot:
    for (std::int64_t i = 0; i < Config::MAX_TABLE_WIDTH; ++i) {
        if (i >= n) {
            break;
        }
        const std::int32_t slot = slots[i];
    copy_to_list:
        for (std::int32_t t = 0; t < Config::MAX_WIDTH; ++t) {
#pragma HLS PIPELINE II=1
            if (t >= W) {
                break;
            }
            kv_indices[frontier.first[t] + i] = slot;
        }
    }
}

inline void compute_kv_indices(std::int32_t B, std::int32_t W, std::int32_t F, std::int32_t P,
                               std::int32_t L, std::int32_t kv_capacity,
                               std::int32_t has_tree_mask, std::int32_t /*has_fed_slots*/,
                               In<std::int32_t> req_to_token, In<std::int64_t> req_pool_indices,
                               In<std::int64_t> seq_len, In<std::uint8_t> tree_mask,
                               In<std::int32_t> fed_slots, Out<std::int32_t> kv_indptr,
                               Out<std::int32_t> kv_indices, Out<std::int32_t> status,
                               Out<std::int64_t> detail) {
    static Frontier frontier;
    // The card gives both arrays or neither.
    const bool is_draft = has_tree_mask != 0;
    std::int64_t asked = 0;
    std::int64_t taken = 0;
    kv_indptr[0] = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Refusal refusal;
        const std::int64_t prefix = seq_len[b];
        const std::int64_t pool_row = req_pool_indices[b];
        check_table(refusal, pool_row, prefix, 0, P, L);
        std::int64_t end[Config::MAX_WIDTH] = {};
        if (!is_refused(refusal)) {
            if (is_draft) {
                load(tree_mask + place(place(b, W, 0), F, 0), W * F, frontier.masks);
            }
            std::int64_t next = taken;
        place_lists:
            for (std::int32_t t = 0; t < Config::MAX_WIDTH; ++t) {
                if (t >= W) {
                    break;
                }
                frontier.first[t] = next;
                next += prefix + (is_draft ? count_visible(frontier, t, F) : 0);
                end[t] = next;
            }
            asked += next - taken;
            if (asked > kv_capacity) {
                refuse(refusal, Status::KV_CAPACITY, asked);
            }
        }
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        if (!is_refused(refusal)) {
            copy_prefix(req_to_token + place(pool_row, L, 0), prefix, frontier, W, kv_indices);
            load(fed_slots + place(b, F, 0), is_draft ? F : 0, frontier.fed_slots);
        }
    emit_lists:
        for (std::int32_t t = 0; t < Config::MAX_WIDTH; ++t) {
            if (t >= W) {
                break;
            }
            if (!is_refused(refusal)) {
                if (is_draft) {
                    copy_visible(frontier, t, F, kv_indices + (frontier.first[t] + prefix));
                }
                taken = end[t];
            }
            kv_indptr[place(b, W, t) + 1] = static_cast<std::int32_t>(taken);
        }
    }
    fill<std::int32_t>(kv_indices + taken, kv_capacity - taken, -1);
}

// ---- K10a and K10b ----

// Spans of all requests, on chip: whether two write one row is a question about all of them.
struct Spans {
    std::int64_t pool_rows[Config::MAX_BATCH];
    std::int64_t start[Config::MAX_BATCH];
    std::int64_t end[Config::MAX_BATCH];
};

inline void load_spans(In<std::int64_t> req_pool_indices, In<std::int64_t> start,
                       In<std::int64_t> end, std::int32_t B, Spans& spans) {
    load(req_pool_indices, B, spans.pool_rows);
    load(start, B, spans.start);
    load(end, B, spans.end);
}

// What both assignments ask of a span before they write it.
inline void check_span(Refusal& refusal, const Spans& spans, std::int32_t b, std::int32_t B,
                       std::int32_t P, std::int32_t L) {
    const std::int64_t pool_row = spans.pool_rows[b];
    const std::int64_t start = spans.start[b];
    const std::int64_t end = spans.end[b];
    if (pool_row < 0 || pool_row >= P) {
        refuse(refusal, Status::TABLE_ROW, pool_row);
    }
    if (start < 0 || start > end || end > L) {
        refuse(refusal, Status::OUT_OF_RANGE, start < 0 ? start : end);
    }
    std::int32_t writers = 0;
count_writers:
    for (std::int32_t other = 0; other < Config::MAX_BATCH; ++other) {
#pragma HLS PIPELINE II=1
        if (other >= B) {
            break;
        }
        if (spans.end[other] > spans.start[other] && spans.pool_rows[other] == pool_row) {
            ++writers;
        }
    }
    if (end > start && writers > 1) {
        refuse(refusal, Status::DUPLICATE_REQUEST, pool_row);
    }
}

// The first negative one of n slots. Reads them, unless the request is refused already.
inline void check_slots(Refusal& refusal, In<std::int32_t> slots, std::int64_t n) {
    const bool is_open = !is_refused(refusal);
find_negative:
    for (std::int64_t i = 0; i < Config::MAX_POOL; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n || !is_open) {
            break;
        }
        const std::int32_t slot = slots[i];
        if (slot < 0) {
            refuse(refusal, Status::BROKEN_LAYOUT, slot);
        }
    }
}

// A span may be as long as the table is wide, so its slots are read twice: once to be judged, and
// once more to be written.
inline void write_span(Out<std::int32_t> table_row, In<std::int32_t> slots, std::int64_t n) {
write_slot:
    for (std::int64_t i = 0; i < Config::MAX_TABLE_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        table_row[i] = slots[i];
    }
}

// K10a: request b takes the first slots of its own row.
inline Refusal check_draft_locs(const Spans& spans, std::int32_t b, std::int32_t B,
                                std::int32_t P, std::int32_t L, std::int32_t T,
                                In<std::int32_t> out_cache_loc) {
    Refusal refusal;
    check_span(refusal, spans, b, B, P, L);
    const std::int64_t needed = span_of(spans.start[b], spans.end[b]);
    if (needed > T) {
        refuse(refusal, Status::SLOT_CAPACITY, needed);
    }
    check_slots(refusal, out_cache_loc + place(b, T, 0), clamped(needed, 0, T));
    return refusal;
}

inline void assign_draft_cache_locs_operator_check(
    std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t T,
    In<std::int32_t> /*req_to_token*/, In<std::int64_t> req_pool_indices, In<std::int64_t> start,
    In<std::int64_t> end, In<std::int32_t> out_cache_loc, Out<std::int32_t> status,
    Out<std::int64_t> detail) {
    Spans spans = {};
    load_spans(req_pool_indices, start, end, B, spans);
check_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const Refusal refusal = check_draft_locs(spans, b, B, P, L, T, out_cache_loc);
        status[b] = refusal.status;
        detail[b] = refusal.detail;
    }
}

inline void assign_draft_cache_locs_operator(std::int32_t B, std::int32_t P, std::int32_t L,
                                             std::int32_t T, Out<std::int32_t> req_to_token,
                                             In<std::int64_t> req_pool_indices,
                                             In<std::int64_t> start, In<std::int64_t> end,
                                             In<std::int32_t> out_cache_loc,
                                             Out<std::int32_t> status, Out<std::int64_t> detail) {
    Spans spans = {};
    load_spans(req_pool_indices, start, end, B, spans);
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const Refusal refusal = check_draft_locs(spans, b, B, P, L, T, out_cache_loc);
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        if (!is_refused(refusal)) {
            write_span(req_to_token + place(spans.pool_rows[b], L, spans.start[b]),
                       out_cache_loc + place(b, T, 0), spans.end[b] - spans.start[b]);
        }
    }
}

// Slots of the flat list taken up to and including request b, refused ones included. A sum that
// would wrap into the list again stays at the largest number.
inline std::int64_t taken_with(std::int64_t taken, const Spans& spans, std::int32_t b) {
    return saturating_sum(taken, span_of(spans.start[b], spans.end[b]));
}

// K10b: request b takes its share behind the shares of all before it; `taken` goes on to the next.
inline Refusal check_pool_locs(const Spans& spans, std::int32_t b, std::int32_t B, std::int32_t P,
                               std::int32_t L, std::int32_t C, In<std::int32_t> out_cache_loc,
                               std::int64_t& taken) {
    Refusal refusal;
    check_span(refusal, spans, b, B, P, L);
    const std::int64_t first = clamped(taken, 0, C);
    taken = taken_with(taken, spans, b);
    if (taken > C) {
        refuse(refusal, Status::SLOT_CAPACITY, taken);
    }
    check_slots(refusal, out_cache_loc + first, clamped(taken, first, C) - first);
    return refusal;
}

inline void assign_req_to_token_pool_operator_check(
    std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t C,
    In<std::int32_t> /*req_to_token*/, In<std::int64_t> req_pool_indices, In<std::int64_t> start,
    In<std::int64_t> end, In<std::int32_t> out_cache_loc, Out<std::int32_t> status,
    Out<std::int64_t> detail) {
    Spans spans = {};
    load_spans(req_pool_indices, start, end, B, spans);
    std::int64_t taken = 0;
check_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const Refusal refusal = check_pool_locs(spans, b, B, P, L, C, out_cache_loc, taken);
        status[b] = refusal.status;
        detail[b] = refusal.detail;
    }
}

inline void assign_req_to_token_pool_operator(std::int32_t B, std::int32_t P, std::int32_t L,
                                              std::int32_t C, Out<std::int32_t> req_to_token,
                                              In<std::int64_t> req_pool_indices,
                                              In<std::int64_t> start, In<std::int64_t> end,
                                              In<std::int32_t> out_cache_loc,
                                              Out<std::int32_t> status,
                                              Out<std::int64_t> detail) {
    Spans spans = {};
    load_spans(req_pool_indices, start, end, B, spans);
    std::int64_t taken = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t first = taken;
        const Refusal refusal = check_pool_locs(spans, b, B, P, L, C, out_cache_loc, taken);
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        if (!is_refused(refusal)) {
            write_span(req_to_token + place(spans.pool_rows[b], L, spans.start[b]),
                       out_cache_loc + first, spans.end[b] - spans.start[b]);
        }
    }
}

}  // namespace aerie
