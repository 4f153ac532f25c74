// K10c, K4 and K9: chosen nodes as rows, their visibility packed to bits, running offsets.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ragged.hpp"

namespace aerie {

// ---- K10c ----

// Ids of the chosen nodes of one request, ascending, and the row of each node (-1: not chosen).
struct Chosen {
    std::int32_t nodes[Config::MAX_NODES];
    std::int32_t row_of[Config::MAX_NODES];
    std::int32_t count;
};

inline void list_chosen(const std::uint8_t* selected, std::int32_t N, Chosen& chosen) {
    chosen.count = 0;
list_nodes:
    for (std::int32_t node = 0; node < Config::MAX_NODES; ++node) {
#pragma HLS PIPELINE II=1
        if (node >= N) {
            break;
        }
        chosen.row_of[node] = -1;
        if (selected[node] != 0) {
            chosen.nodes[chosen.count] = node;
            chosen.row_of[node] = chosen.count;
            ++chosen.count;
        }
    }
}

// A node hangs on a chosen node before it; the root on none.
inline bool is_linked(const Chosen& chosen, std::int32_t node, std::int64_t parent) {
    if (node == 0) {
        return parent == -1;
    }
    return parent >= 0 && parent < node && chosen.row_of[parent] >= 0;
}

inline void check_links(Refusal& refusal, const Chosen& chosen, const std::int64_t* parents,
                        std::int64_t node_count) {
    if (chosen.row_of[0] != 0) {
        refuse(refusal, Status::BROKEN_TREE, 0);
    }
check_node:
    for (std::int32_t row = 0; row < Config::MAX_NODES; ++row) {
#pragma HLS PIPELINE II=1
        if (row >= chosen.count) {
            break;
        }
        const std::int32_t node = chosen.nodes[row];
        if (node >= node_count || !is_linked(chosen, node, parents[node])) {
            refuse(refusal, Status::BROKEN_TREE, node);
        }
    }
}

inline void check_siblings_differ(Refusal& refusal, const Chosen& chosen,
                                  const std::int64_t* tokens, const std::int64_t* parents) {
sibling_second:
    for (std::int32_t row = 0; row < Config::MAX_NODES; ++row) {
        if (row >= chosen.count || is_refused(refusal)) {
            break;
        }
        const std::int32_t node = chosen.nodes[row];
    sibling_first:
        for (std::int32_t before = 0; before < Config::MAX_NODES; ++before) {
#pragma HLS PIPELINE II=1
            if (before >= row) {
                break;
            }
            const std::int32_t other = chosen.nodes[before];
            if (parents[other] == parents[node] && tokens[other] == tokens[node]) {
                refuse(refusal, Status::DUPLICATE_SIBLING, tokens[node]);
            }
        }
    }
}

inline void check_tree(Refusal& refusal, const Chosen& chosen, const std::int64_t* tokens,
                       const std::int64_t* parents, std::int64_t node_count,
                       std::int64_t seq_len, std::int32_t N) {
    if (node_count < 1 || node_count > N) {
        refuse(refusal, Status::OUT_OF_RANGE, node_count);
        return;
    }
    if (seq_len < 0) {
        refuse(refusal, Status::NEGATIVE_LENGTH, seq_len);
        return;
    }
    check_links(refusal, chosen, parents, node_count);
    check_siblings_differ(refusal, chosen, tokens, parents);
    if (chosen.count > Config::MAX_VERIFY) {
        refuse(refusal, Status::ROW_CAPACITY, chosen.count);
    }
}

// Links of one request's rows. Rows ascend by node id, so parents come before their children and
// siblings keep their order. What later rows need of earlier ones stays on chip.
inline void emit_links(const Chosen& chosen, const std::int64_t* parents, std::int64_t first,
                       std::int64_t* parent_row, std::int64_t* first_child_row,
                       std::int64_t* next_sibling_row, std::uint32_t* ancestor_bits) {
    std::uint32_t bits[Config::MAX_VERIFY][4] = {};
    std::int32_t last_child[Config::MAX_VERIFY] = {};  // 0: none yet, for the root is no child
#pragma HLS ARRAY_PARTITION variable=bits complete dim=2
#pragma HLS ARRAY_PARTITION variable=last_child complete
link_row:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= chosen.count) {
            break;
        }
        const std::int64_t flat = first + row;
        // The root takes over from itself, which is nothing yet.
        const std::int32_t parent = row > 0 ? chosen.row_of[parents[chosen.nodes[row]]] : 0;
        if (row > 0) {
            parent_row[flat] = parent;
            if (last_child[parent] > 0) {
                next_sibling_row[first + last_child[parent]] = row;
            } else {
                first_child_row[first + parent] = row;
            }
            last_child[parent] = row;
        }
    copy_words:
        for (std::int32_t word = 0; word < 4; ++word) {
#pragma HLS UNROLL
            const std::uint32_t own = word == row / 32 ? 1U << (row % 32) : 0U;
            bits[row][word] = bits[parent][word] | own;
            ancestor_bits[place(flat, 4, word)] = bits[row][word];
        }
    }
}

inline void update_node_data(std::int32_t B, std::int32_t N, std::int32_t row_capacity,
                             const std::int64_t* cumu_tokens, const std::int64_t* cumu_deltas,
                             const std::int64_t* prev_indexs, const std::int64_t* node_count,
                             const std::uint8_t* selected, const std::int64_t* seq_len,
                             std::int32_t* qo_indptr, std::int64_t* draft_tokens,
                             std::int64_t* positions, std::int64_t* parent_row,
                             std::int64_t* first_child_row, std::int64_t* next_sibling_row,
                             std::uint32_t* ancestor_bits, std::int32_t* status,
                             std::int64_t* detail) {
    Chosen chosen;
    fill<std::int64_t>(draft_tokens, row_capacity, -1);
    fill<std::int64_t>(positions, row_capacity, 0);
    fill<std::int64_t>(parent_row, row_capacity, -1);
    fill<std::int64_t>(first_child_row, row_capacity, -1);
    fill<std::int64_t>(next_sibling_row, row_capacity, -1);
    fill<std::uint32_t>(ancestor_bits, place(row_capacity, 4, 0), 0);
    // Rows asked for so far: a request that does not fit still counts for those behind it.
    std::int32_t asked = 0;
    qo_indptr[0] = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t store = place(b, N, 0);
        const std::int64_t first = qo_indptr[b];
        Refusal refusal;
        list_chosen(selected + store, N, chosen);
        check_tree(refusal, chosen, cumu_tokens + store, prev_indexs + store, node_count[b],
                   seq_len[b], N);
        if (!is_refused(refusal)) {
            asked += chosen.count;
            if (asked > row_capacity) {
                refuse(refusal, Status::SLOT_CAPACITY, asked);
            }
        }
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        qo_indptr[b + 1] = qo_indptr[b];
        if (is_refused(refusal)) {
            continue;
        }
    emit_rows:
        for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
#pragma HLS PIPELINE II=1
            if (row >= chosen.count) {
                break;
            }
            const std::int64_t node = store + chosen.nodes[row];
            draft_tokens[first + row] = cumu_tokens[node];
            positions[first + row] = wrapping_sum(seq_len[b], cumu_deltas[node]);
        }
        emit_links(chosen, prev_indexs + store, first, parent_row, first_child_row,
                   next_sibling_row, ancestor_bits);
        qo_indptr[b + 1] = qo_indptr[b] + chosen.count;
    }
}

// ---- K4 ----

// Pack rows x columns bits: the prefix is visible, tree columns by ancestor bits. Bits are written
// a byte at a time as they come, so no boolean table exists.
inline void pack_mask(const std::uint32_t* ancestor_bits, const Rows& rows, std::int64_t prefix,
                      std::int64_t n_bytes, std::uint8_t* packed) {
    const std::int64_t columns = prefix + rows.count;
    std::int32_t row = 0;
    std::int64_t column = 0;
pack_byte:
    for (std::int64_t i = 0; i < Config::MAX_MASK_BYTES; ++i) {
#pragma HLS PIPELINE
        if (i >= n_bytes) {
            break;
        }
        std::uint32_t byte = 0;
    pack_bit:
        for (std::int32_t bit = 0; bit < 8; ++bit) {
            if (row < rows.count) {
                const std::int64_t j = column - prefix;
                const bool is_visible =
                    j < 0 ||
                    is_ancestor(ancestor_bits, rows.first + row, static_cast<std::int32_t>(j));
                byte |= is_visible ? 1U << bit : 0U;
                ++column;
                if (column == columns) {
                    column = 0;
                    ++row;
                }
            }
        }
        packed[i] = static_cast<std::uint8_t>(byte);
    }
}

inline std::int64_t bytes_of_bits(std::int64_t bits) { return (bits + 7) / 8; }

inline void fused_tree_mask_operator(
    std::int32_t B, std::int32_t R, std::int32_t P, std::int32_t L, std::int32_t kv_capacity,
    std::int32_t mask_capacity, const std::int32_t* req_to_token,
    const std::int64_t* req_pool_indices, const std::int64_t* seq_len,
    const std::int32_t* qo_indptr, const std::uint32_t* ancestor_bits, std::int32_t* kv_indptr,
    std::int32_t* kv_indices, std::int32_t* mask_indptr, std::uint8_t* packed_mask,
    std::int32_t* status, std::int64_t* detail) {
    fill<std::int32_t>(kv_indices, kv_capacity, -1);
    fill<std::uint8_t>(packed_mask, mask_capacity, 0);
    std::int64_t asked_slots = 0;
    std::int64_t asked_bytes = 0;
    std::int32_t highest = Config::INT32_LOWEST;
    kv_indptr[0] = 0;
    mask_indptr[0] = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Refusal refusal;
        const Rows rows = request_rows(refusal, qo_indptr, b, highest, R, Config::MAX_VERIFY);
        highest = higher(highest, qo_indptr[b]);
        check_table(refusal, req_pool_indices[b], seq_len[b], rows.count, P, L);
        const std::int64_t columns = is_refused(refusal) ? 0 : seq_len[b] + rows.count;
        const std::int64_t n_bytes = bytes_of_bits(rows.count * columns);
        if (!is_refused(refusal)) {
            asked_slots += columns;
            asked_bytes += n_bytes;
            if (asked_slots > kv_capacity) {
                refuse(refusal, Status::KV_CAPACITY, asked_slots);
            }
            if (asked_bytes > mask_capacity) {
                refuse(refusal, Status::MASK_CAPACITY, asked_bytes);
            }
        }
        status[b] = refusal.status;
        detail[b] = refusal.detail;
        kv_indptr[b + 1] = kv_indptr[b];
        mask_indptr[b + 1] = mask_indptr[b];
        if (is_refused(refusal)) {
            continue;
        }
        copy_slots(req_to_token + place(req_pool_indices[b], L, 0), columns,
                   kv_indices + kv_indptr[b]);
        pack_mask(ancestor_bits, rows, seq_len[b], n_bytes, packed_mask + mask_indptr[b]);
        kv_indptr[b + 1] += static_cast<std::int32_t>(columns);
        mask_indptr[b + 1] += static_cast<std::int32_t>(n_bytes);
    }
}

// ---- K9 ----

inline void calculate_verify_kv_qo_ms(std::int32_t B, const std::int64_t* verify_count,
                                      const std::int64_t* seq_len, std::int32_t* qo_indptr,
                                      std::int32_t* kv_indptr, std::int32_t* mask_indptr,
                                      std::int32_t* status, std::int64_t* detail) {
    // An error names an overflow up to here. A prefix twice as long overflows all the same, and
    // 128 such sums stay within 64 bits.
    constexpr std::int64_t LARGEST_NAMED = 1LL << 40;
    // Rows are at most 128 times 128 and overflow nothing.
    std::int64_t asked_slots = 0;
    std::int64_t asked_bytes = 0;
    qo_indptr[0] = 0;
    kv_indptr[0] = 0;
    mask_indptr[0] = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
#pragma HLS PIPELINE
        if (b >= B) {
            break;
        }
        Refusal refusal;
        const std::int64_t rows = verify_count[b];
        const std::int64_t prefix = clamped(seq_len[b], 0, 2 * LARGEST_NAMED);
        if (rows < 0 || rows > Config::MAX_VERIFY) {
            refuse(refusal, Status::OUT_OF_RANGE, rows);
        }
        if (seq_len[b] < 0) {
            refuse(refusal, Status::NEGATIVE_LENGTH, seq_len[b]);
        }
        const std::int64_t counted = clamped(rows, 0, Config::MAX_VERIFY);
        const std::int64_t columns = prefix + counted;
        const std::int64_t n_bytes = bytes_of_bits(counted * columns);
        if (!is_refused(refusal)) {
            asked_slots += columns;
            asked_bytes += n_bytes;
            const std::int64_t most = asked_slots > asked_bytes ? asked_slots : asked_bytes;
            if (most > Config::INT32_HIGHEST) {
                const std::int64_t named = most < LARGEST_NAMED ? most : LARGEST_NAMED;
                refuse(refusal, Status::OVERFLOW, named);
            }
        }
        const bool is_taken = !is_refused(refusal);
        qo_indptr[b + 1] = qo_indptr[b] + (is_taken ? static_cast<std::int32_t>(counted) : 0);
        kv_indptr[b + 1] = kv_indptr[b] + (is_taken ? static_cast<std::int32_t>(columns) : 0);
        mask_indptr[b + 1] = mask_indptr[b] + (is_taken ? static_cast<std::int32_t>(n_bytes) : 0);
        status[b] = refusal.status;
        detail[b] = refusal.detail;
    }
}

}  // namespace aerie
