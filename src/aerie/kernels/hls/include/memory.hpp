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
        tell(refusal, b, status, detail);
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

// Slots of K10a: request b takes the first ones of its own row.
struct OwnRows {
    std::int32_t width;
};

inline std::int64_t next_slot(Refusal& refusal, const OwnRows& given, const Spans& spans,
                              std::int32_t b, In<std::int32_t> slots) {
    const std::int64_t needed = span_of(spans.start[b], spans.end[b]);
    if (needed > given.width) {
        refuse(refusal, Status::SLOT_CAPACITY, needed);
    }
    const std::int64_t first = place(b, given.width, 0);
    check_slots(refusal, slots + first, clamped(needed, 0, given.width));
    return first;
}

// Slots of K10b: request b takes its share behind the shares of all before it, refused ones
// included. A sum that would wrap into the list again stays at the largest number.
struct Shares {
    std::int32_t size;
    std::int64_t taken;
};

inline std::int64_t next_slot(Refusal& refusal, Shares& given, const Spans& spans, std::int32_t b,
                              In<std::int32_t> slots) {
    const std::int64_t first = clamped(given.taken, 0, given.size);
    given.taken = saturating_sum(given.taken, span_of(spans.start[b], spans.end[b]));
    if (given.taken > given.size) {
        refuse(refusal, Status::SLOT_CAPACITY, given.taken);
    }
    check_slots(refusal, slots + first, clamped(given.taken, first, given.size) - first);
    return first;
}

// A check writes no table.
struct NoTable {};

inline void put_span(const NoTable& /*table*/, std::int64_t /*at*/, In<std::int32_t> /*slots*/,
                     std::int64_t /*n*/) {}

// A span may be as long as the table is wide, so its slots are read twice: once to be judged, and
// once more to be written.
inline void put_span(const Out<std::int32_t>& table, std::int64_t at, In<std::int32_t> slots,
                     std::int64_t n) {
    copy_slots(slots, n, table + at);
}

// Both assignments, and both checks.
template <typename Table, typename Slots>
inline void assign_spans(std::int32_t B, std::int32_t P, std::int32_t L, const Table& table,
                         In<std::int64_t> req_pool_indices, In<std::int64_t> start,
                         In<std::int64_t> end, In<std::int32_t> slots, Slots given,
                         Out<std::int32_t> status, Out<std::int64_t> detail) {
    Spans spans = {};
    load_spans(req_pool_indices, start, end, B, spans);
assign_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Refusal refusal;
        check_span(refusal, spans, b, B, P, L);
        const std::int64_t first = next_slot(refusal, given, spans, b, slots);
        tell(refusal, b, status, detail);
        if (!is_refused(refusal)) {
            put_span(table, place(spans.pool_rows[b], L, spans.start[b]), slots + first,
                     spans.end[b] - spans.start[b]);
        }
    }
}

inline void assign_draft_cache_locs_operator_check(
    std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t T,
    In<std::int32_t> /*req_to_token*/, In<std::int64_t> req_pool_indices, In<std::int64_t> start,
    In<std::int64_t> end, In<std::int32_t> out_cache_loc, Out<std::int32_t> status,
    Out<std::int64_t> detail) {
    assign_spans(B, P, L, NoTable{}, req_pool_indices, start, end, out_cache_loc, OwnRows{T},
                 status, detail);
}

inline void assign_draft_cache_locs_operator(
    std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t T, Out<std::int32_t> req_to_token,
    In<std::int64_t> req_pool_indices, In<std::int64_t> start, In<std::int64_t> end,
    In<std::int32_t> out_cache_loc, Out<std::int32_t> status, Out<std::int64_t> detail) {
    assign_spans(B, P, L, req_to_token, req_pool_indices, start, end, out_cache_loc, OwnRows{T},
                 status, detail);
}

inline void assign_req_to_token_pool_operator_check(
    std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t C,
    In<std::int32_t> /*req_to_token*/, In<std::int64_t> req_pool_indices, In<std::int64_t> start,
    In<std::int64_t> end, In<std::int32_t> out_cache_loc, Out<std::int32_t> status,
    Out<std::int64_t> detail) {
    assign_spans(B, P, L, NoTable{}, req_pool_indices, start, end, out_cache_loc, Shares{C, 0},
                 status, detail);
}

inline void assign_req_to_token_pool_operator(
    std::int32_t B, std::int32_t P, std::int32_t L, std::int32_t C, Out<std::int32_t> req_to_token,
    In<std::int64_t> req_pool_indices, In<std::int64_t> start, In<std::int64_t> end,
    In<std::int32_t> out_cache_loc, Out<std::int32_t> status, Out<std::int64_t> detail) {
    assign_spans(B, P, L, req_to_token, req_pool_indices, start, end, out_cache_loc, Shares{C, 0},
                 status, detail);
}

}  // namespace aerie
