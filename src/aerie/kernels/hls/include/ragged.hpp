// Refusals, rows and slots of one request: what every kernel over a ragged batch checks first.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ports.hpp"

namespace aerie {

// Why a request is refused, and the value to blame. The first reason found stays.
struct Refusal {
    std::int32_t status = 0;
    std::int64_t detail = 0;
};

inline void refuse(Refusal& refusal, Status code, std::int64_t value) {
    if (refusal.status == 0) {
        refusal.status = static_cast<std::int32_t>(code);
        refusal.detail = value;
    }
}

inline bool is_refused(const Refusal& refusal) { return refusal.status != 0; }

inline void tell(const Refusal& refusal, std::int32_t request, Out<std::int32_t> status,
                 Out<std::int64_t> detail) {
    status[request] = refusal.status;
    detail[request] = refusal.detail;
}

// Flat rows of a request.
struct Rows {
    std::int32_t first = 0;
    std::int32_t count = 0;
};

// Goes through a batch's row pointers once: `first` is where the next request's rows begin, and
// `highest` the highest entry so far.
struct RowPointers {
    std::int32_t first;
    std::int32_t highest;
};

inline RowPointers begin_rows(In<std::int32_t> qo_indptr) {
    return RowPointers{qo_indptr[0], Config::INT32_LOWEST};
}

// Rows [first, end) of the next request. Rows that an earlier request already had count as falling,
// so that no row has two owners.
inline Rows next_rows(Refusal& refusal, RowPointers& pointers, std::int32_t end,
                      std::int32_t n_rows, std::int32_t most) {
    const std::int32_t first = pointers.first;
    const bool is_falling =
        first < 0 || first > end || end > n_rows || first < pointers.highest;
    pointers.first = end;
    pointers.highest = higher(pointers.highest, first);
    if (is_falling) {
        refuse(refusal, Status::BROKEN_LAYOUT, end);
        return Rows{};
    }
    if (end - first > most) {
        refuse(refusal, Status::ROW_CAPACITY, end - first);
        return Rows{};
    }
    return Rows{first, end - first};
}

// A row of the slot table must exist and have the columns [0, seq_len + n_rows).
inline void check_table(Refusal& refusal, std::int64_t pool_row, std::int64_t seq_len,
                        std::int32_t n_rows, std::int32_t P, std::int32_t L) {
    if (pool_row < 0 || pool_row >= P) {
        refuse(refusal, Status::TABLE_ROW, pool_row);
    } else if (seq_len < 0) {
        refuse(refusal, Status::NEGATIVE_LENGTH, seq_len);
    } else if (seq_len > static_cast<std::int64_t>(L) - n_rows) {
        refuse(refusal, Status::OUT_OF_RANGE, saturating_sum(seq_len, n_rows));
    }
}

// The ancestors of a row, itself included: bit j for row j of the request.
struct Ancestors {
    std::uint32_t word[4];
};

inline bool is_ancestor(const Ancestors& ancestors, std::int32_t j) {
    return ((ancestors.word[j / 32] >> (j % 32)) & 1U) != 0U;
}

inline void load_ancestors(In<std::uint32_t> ancestor_bits, const Rows& rows,
                           Ancestors (&ancestors)[Config::MAX_VERIFY]) {
load_ancestor_row:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= rows.count) {
            break;
        }
    load_ancestor_word:
        for (std::int32_t word = 0; word < 4; ++word) {
#pragma HLS PIPELINE II=1
            ancestors[row].word[word] = ancestor_bits[place(rows.first + row, 4, word)];
        }
    }
}

// Fill n entries; capacities are host scalars, so the trip count is the largest one.
template <typename Element>
inline void fill(Out<Element> out, std::int64_t n, Element value) {
fill_entries:
    for (std::int64_t i = 0; i < Config::MAX_BUFFER; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        out[i] = value;
    }
}

// Slots of a table row.
inline void copy_slots(In<std::int32_t> slots, std::int64_t n, Out<std::int32_t> out) {
copy_slot:
    for (std::int64_t i = 0; i < Config::MAX_TABLE_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        out[i] = slots[i];
    }
}

}  // namespace aerie
