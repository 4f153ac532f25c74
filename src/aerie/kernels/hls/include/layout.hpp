// K10c, K4 and K9: chosen nodes as rows, their visibility packed to bits, running offsets.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ports.hpp"
#include "ragged.hpp"

namespace aerie {

// ---- K10c ----

// The chosen nodes of one request, ascending by id; what later rows need of earlier ones.
struct Chosen {
    std::int32_t nodes[Config::MAX_NODES];
    std::int32_t row_of[Config::MAX_NODES];  // by node, -1: not chosen
    std::int64_t parents[Config::MAX_NODES];  // by row
    std::int64_t tokens[Config::MAX_NODES];  // by row
    std::int32_t count;
};

inline void list_chosen(In<std::uint8_t> selected, std::int32_t N, Chosen& chosen) {
    chosen.count = 0;
list_nodes:
    for (std::int32_t node = 0; node < Config::MAX_NODES; ++node) {
#pragma HLS PIPELINE II=1
        if (node >= N) {
            break;
        }
        const bool is_chosen = selected[node] != 0;
        chosen.row_of[node] = is_chosen ? chosen.count : -1;
        if (is_chosen) {
            chosen.nodes[chosen.count] = node;
            ++chosen.count;
        }
    }
}

inline void load_chosen(In<std::int64_t> tokens, In<std::int64_t> parents, Chosen& chosen) {
load_node:
    for (std::int32_t row = 0; row < Config::MAX_NODES; ++row) {
#pragma HLS PIPELINE II=1
        if (row >= chosen.count) {
            break;
        }
        chosen.tokens[row] = tokens[chosen.nodes[row]];
        chosen.parents[row] = parents[chosen.nodes[row]];
    }
}

// A node hangs on a chosen node before it; the root on none.
inline bool is_linked(const Chosen& chosen, std::int32_t node, std::int64_t parent) {
    if (node == 0) {
        return parent == -1;
    }
    return parent >= 0 && parent < node && chosen.row_of[parent] >= 0;
}

inline void check_links(Refusal& refusal, const Chosen& chosen, std::int64_t node_count) {
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
        if (node >= node_count || !is_linked(chosen, node, chosen.parents[row])) {
            refuse(refusal, Status::BROKEN_TREE, node);
        }
    }
}

inline void check_siblings_differ(Refusal& refusal, const Chosen& chosen) {
sibling_second:
    for (std::int32_t row = 0; row < Config::MAX_NODES; ++row) {
        if (row >= chosen.count || is_refused(refusal)) {
            break;
        }
    sibling_first:
        for (std::int32_t before = 0; before < Config::MAX_NODES; ++before) {
#pragma HLS PIPELINE II=1
            if (before >= row) {
                break;
            }
            if (chosen.parents[before] == chosen.parents[row] &&
                chosen.tokens[before] == chosen.tokens[row]) {
                refuse(refusal, Status::DUPLICATE_SIBLING, chosen.tokens[row]);
            }
        }
    }
}

inline void check_tree(Refusal& refusal, const Chosen& chosen, std::int64_t node_count) {
    check_links(refusal, chosen, node_count);
    check_siblings_differ(refusal, chosen);
    if (chosen.count > Config::MAX_VERIFY) {
        refuse(refusal, Status::ROW_CAPACITY, chosen.count);
    }
}

// Links of one request's rows. Rows ascend by node id, so parents come before their children and
// siblings keep their order.
struct Links {
    std::int64_t parent[Config::MAX_VERIFY];
    std::int64_t first_child[Config::MAX_VERIFY];
    std::int64_t next_sibling[Config::MAX_VERIFY];
    Ancestors ancestors[Config::MAX_VERIFY];
};

inline void link_rows(const Chosen& chosen, Links& links) {
    std::int32_t last_child[Config::MAX_VERIFY] = {};  // 0: none yet, for the root is no child
#pragma HLS ARRAY_PARTITION variable=last_child complete
link_row:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= chosen.count) {
            break;
        }
        links.first_child[row] = -1;
        links.next_sibling[row] = -1;
        // The root takes over from itself, which is nothing yet.
        const std::int32_t parent = row > 0 ? chosen.row_of[chosen.parents[row]] : 0;
        links.parent[row] = row > 0 ? parent : -1;
        if (row > 0) {
            if (last_child[parent] > 0) {
                links.next_sibling[last_child[parent]] = row;
            } else {
                links.first_child[parent] = row;
            }
            last_child[parent] = row;
        }
    copy_words:
        for (std::int32_t word = 0; word < 4; ++word) {
#pragma HLS UNROLL
            const std::uint32_t own = word == row / 32 ? 1U << (row % 32) : 0U;
            const std::uint32_t above = row > 0 ? links.ancestors[parent].word[word] : 0U;
            links.ancestors[row].word[word] = above | own;
        }
    }
}

inline void update_node_data(std::int32_t B, std::int32_t N, std::int32_t row_capacity,
                             In<std::int64_t> cumu_tokens, In<std::int64_t> cumu_deltas,
                             In<std::int64_t> prev_indexs, In<std::int64_t> node_count,
                             In<std::uint8_t> selected, In<std::int64_t> seq_len,
                             Out<std::int32_t> qo_indptr, Out<std::int64_t> draft_tokens,
                             Out<std::int64_t> positions, Out<std::int64_t> parent_row,
                             Out<std::int64_t> first_child_row, Out<std::int64_t> next_sibling_row,
                             Out<std::uint32_t> ancestor_bits, Out<std::int32_t> status,
                             Out<std::int64_t> detail) {
    static Chosen chosen;
    static Links links;
    // Rows asked for so far: a request that does not fit still counts for those behind it.
    std::int32_t asked = 0;
    std::int64_t first = 0;
    qo_indptr[0] = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int64_t store = place(b, N, 0);
        const std::int64_t in_use = node_count[b];
        const std::int64_t prefix = seq_len[b];
        Refusal refusal;
        if (in_use < 1 || in_use > N) {
            refuse(refusal, Status::OUT_OF_RANGE, in_use);
        } else if (prefix < 0) {
            refuse(refusal, Status::NEGATIVE_LENGTH, prefix);
        } else {
            list_chosen(selected + store, N, chosen);
            load_chosen(cumu_tokens + store, prev_indexs + store, chosen);
            check_tree(refusal, chosen, in_use);
        }
        if (!is_refused(refusal)) {
            asked += chosen.count;
            if (asked > row_capacity) {
                refuse(refusal, Status::SLOT_CAPACITY, asked);
            }
        }
        tell(refusal, b, status, detail);
        if (!is_refused(refusal)) {
            link_rows(chosen, links);
        emit_rows:
            for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
#pragma HLS PIPELINE II=1
                if (row >= chosen.count) {
                    break;
                }
                const std::int64_t flat = first + row;
                draft_tokens[flat] = chosen.tokens[row];
                positions[flat] = wrapping_sum(prefix, cumu_deltas[store + chosen.nodes[row]]);
                parent_row[flat] = links.parent[row];
                first_child_row[flat] = links.first_child[row];
                next_sibling_row[flat] = links.next_sibling[row];
            emit_words:
                for (std::int32_t word = 0; word < 4; ++word) {
                    ancestor_bits[place(flat, 4, word)] = links.ancestors[row].word[word];
                }
            }
            first += chosen.count;
        }
        qo_indptr[b + 1] = static_cast<std::int32_t>(first);
    }
    const std::int64_t unused = row_capacity - first;
    fill<std::int64_t>(draft_tokens + first, unused, -1);
    fill<std::int64_t>(positions + first, unused, 0);
    fill<std::int64_t>(parent_row + first, unused, -1);
    fill<std::int64_t>(first_child_row + first, unused, -1);
    fill<std::int64_t>(next_sibling_row + first, unused, -1);
    fill<std::uint32_t>(ancestor_bits + place(first, 4, 0), place(unused, 4, 0), 0);
}

// ---- K4 ----

// Pack rows x columns bits: the prefix is visible, tree columns by ancestors. Bits are written a
// byte at a time as they come, so no boolean table exists.
inline void pack_mask(const Ancestors (&ancestors)[Config::MAX_VERIFY], std::int32_t n_rows,
                      std::int64_t prefix, std::int64_t n_bytes, Out<std::uint8_t> packed) {
    const std::int64_t columns = prefix + n_rows;
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
            if (row < n_rows) {
                const std::int64_t j = column - prefix;
                const bool is_visible =
                    j < 0 || is_ancestor(ancestors[row], static_cast<std::int32_t>(j));
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
    std::int32_t mask_capacity, In<std::int32_t> req_to_token, In<std::int64_t> req_pool_indices,
    In<std::int64_t> seq_len, In<std::int32_t> qo_indptr, In<std::uint32_t> ancestor_bits,
    Out<std::int32_t> kv_indptr, Out<std::int32_t> kv_indices, Out<std::int32_t> mask_indptr,
    Out<std::uint8_t> packed_mask, Out<std::int32_t> status, Out<std::int64_t> detail) {
    static Ancestors ancestors[Config::MAX_VERIFY];
    std::int64_t asked_slots = 0;
    std::int64_t asked_bytes = 0;
    std::int64_t slots = 0;
    std::int64_t bytes = 0;
    RowPointers pointers = begin_rows(qo_indptr);
    kv_indptr[0] = 0;
    mask_indptr[0] = 0;
requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        Refusal refusal;
        const std::int64_t prefix = seq_len[b];
        const std::int64_t pool_row = req_pool_indices[b];
        const Rows rows =
            next_rows(refusal, pointers, qo_indptr[b + 1], R, Config::MAX_VERIFY);
        check_table(refusal, pool_row, prefix, rows.count, P, L);
        const std::int64_t columns = is_refused(refusal) ? 0 : prefix + rows.count;
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
        tell(refusal, b, status, detail);
        if (!is_refused(refusal)) {
            load_ancestors(ancestor_bits, rows, ancestors);
            copy_slots(req_to_token + place(pool_row, L, 0), columns, kv_indices + slots);
            pack_mask(ancestors, rows.count, prefix, n_bytes, packed_mask + bytes);
            slots += columns;
            bytes += n_bytes;
        }
        kv_indptr[b + 1] = static_cast<std::int32_t>(slots);
        mask_indptr[b + 1] = static_cast<std::int32_t>(bytes);
    }
    fill<std::int32_t>(kv_indices + slots, kv_capacity - slots, -1);
    fill<std::uint8_t>(packed_mask + bytes, mask_capacity - bytes, 0);
}

// ---- K9 ----

inline void calculate_verify_kv_qo_ms(std::int32_t B, In<std::int64_t> verify_count,
                                      In<std::int64_t> seq_len, Out<std::int32_t> qo_indptr,
                                      Out<std::int32_t> kv_indptr, Out<std::int32_t> mask_indptr,
                                      Out<std::int32_t> status, Out<std::int64_t> detail) {
    // An error names an overflow up to here. A prefix twice as long overflows all the same, and
    // 128 such sums stay within 64 bits.
    constexpr std::int64_t LARGEST_NAMED = 1LL << 40;
    std::int64_t asked_slots = 0;
    std::int64_t asked_bytes = 0;
    // Rows are at most 128 times 128 and overflow nothing.
    std::int32_t taken_rows = 0;
    std::int32_t taken_slots = 0;
    std::int32_t taken_bytes = 0;
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
        const std::int64_t length = seq_len[b];
        const std::int64_t prefix = clamped(length, 0, 2 * LARGEST_NAMED);
        if (rows < 0 || rows > Config::MAX_VERIFY) {
            refuse(refusal, Status::OUT_OF_RANGE, rows);
        }
        if (length < 0) {
            refuse(refusal, Status::NEGATIVE_LENGTH, length);
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
        if (!is_refused(refusal)) {
            taken_rows += static_cast<std::int32_t>(counted);
            taken_slots += static_cast<std::int32_t>(columns);
            taken_bytes += static_cast<std::int32_t>(n_bytes);
        }
        qo_indptr[b + 1] = taken_rows;
        kv_indptr[b + 1] = taken_slots;
        mask_indptr[b + 1] = taken_bytes;
        tell(refusal, b, status, detail);
    }
}

}  // namespace aerie
