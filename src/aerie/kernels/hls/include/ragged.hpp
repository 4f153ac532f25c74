// Refusals, rows and slots of one request: what every kernel over a ragged batch checks first.
#pragma once

#include "config.hpp"
#include "numeric.hpp"

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

// Flat rows of a request.
struct Rows {
    std::int32_t first = 0;
    std::int32_t count = 0;
};

// Rows [indptr[b], indptr[b + 1]); `highest` is the highest entry before them: rows that an
// earlier request already had count as falling, so that no row has two owners.
inline Rows request_rows(Refusal& refusal, const std::int32_t* qo_indptr, std::int32_t b,
                         std::int32_t highest, std::int32_t n_rows, std::int32_t most) {
    const std::int32_t first = qo_indptr[b];
    const std::int32_t end = qo_indptr[b + 1];
    if (first < 0 || first > end || end > n_rows || first < highest) {
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

// Bit j of the 128 ancestor bits of a flat row.
inline bool is_ancestor(const std::uint32_t* ancestor_bits, std::int32_t row, std::int32_t j) {
    return ((ancestor_bits[place(row, 4, j / 32)] >> (j % 32)) & 1U) != 0U;
}

// Fill n entries; capacities are host scalars, so the trip count is the largest one.
template <typename Element>
inline void fill(Element* out, std::int64_t n, Element value) {
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
inline void copy_slots(const std::int32_t* slots, std::int64_t n, std::int32_t* out) {
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
