// A whole draft in one region: the head's layer, its vocabulary streamed into top lists, and the
// tree that grows from them, level after level, before anything but keys and values goes out.
#pragma once

#include "config.hpp"
#include "drafter.hpp"
#include "drafter_ops.hpp"
#include "fused_tree.hpp"
#include "numeric.hpp"
#include "ports.hpp"

namespace aerie {

// ---- what stays on chip ----

// The attention block's weights, loaded once for as long as the model is served.
struct ResidentAttention {
    std::uint8_t qkv[Config::RESIDENT_BYTES];
    std::uint16_t qkv_scales[Config::RESIDENT_BYTES / 64];
    std::uint8_t output[Config::RESIDENT_BYTES];
    std::uint16_t output_scales[Config::RESIDENT_BYTES / 64];
};

inline ResidentAttention& resident_attention() {
    static ResidentAttention block;
#pragma HLS BIND_STORAGE variable=block type=ram_2p impl=uram
    return block;
}

template <typename Element>
inline void load_resident(In<Element> port, std::int64_t n, Element* buffer) {
load_block:
    for (std::int64_t i = 0; i < Config::RESIDENT_BYTES; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        buffer[i] = port[i];
    }
}

inline void fused_load_attention(std::int32_t NW, std::int32_t NS, std::int32_t NO,
                                 std::int32_t NP, In<std::uint8_t> qkv,
                                 In<std::uint16_t> qkv_scale, In<std::uint8_t> output,
                                 In<std::uint16_t> output_scale) {
    ResidentAttention& block = resident_attention();
    load_resident(qkv, NW, block.qkv);
    load_resident(qkv_scale, NS, block.qkv_scales);
    load_resident(output, NO, block.output);
    load_resident(output_scale, NP, block.output_scales);
}

// Rows of the level that is running.
struct DraftRows {
    RowBuffer input;  // hidden states going in
    RowBuffer embedded;
    RowBuffer joined;
    RowBuffer qkv;
    RowBuffer attended;
    RowBuffer added;
    RowBuffer hidden;  // the residual stream coming out
    RowBuffer normed;
};

inline DraftRows& draft_rows() {
    static DraftRows rows;
    return rows;
}

// Norms and angles: a few kilobytes, read once a round.
struct DraftTables {
    NormWeight embedding_norm;
    NormWeight hidden_norm;
    NormWeight mlp_norm;
    NormWeight final_norm;
    float eps;
};

// Sizes of the head.
struct DraftSizes {
    std::int32_t hidden;
    std::int32_t mlp;
    std::int32_t vocab;
    std::int32_t rank;
    HeadSizes heads;
    std::int32_t window;

    std::int32_t q_width() const { return heads.n_heads * heads.head_dim; }
    std::int32_t kv_width() const { return heads.n_kv_heads * heads.head_dim; }
};

// ---- the layer ----

// Embedding rows of tokens, gathered from memory.
inline void embed(In<std::uint16_t> embedding, const std::int64_t* tokens, std::int32_t n_rows,
                  std::int32_t hidden, float* out) {
gather_embedding:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= n_rows) {
            break;
        }
        load_rows(embedding + place(tokens[r], hidden, 0), 1, hidden, out + place(r, hidden, 0));
    }
}

inline void join_norms(DraftRows& rows, std::int32_t n_rows, const DraftTables& tables,
                       std::int32_t hidden) {
join_rows:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= n_rows) {
            break;
        }
        float* joined = rows.joined.data + place(r, 2 * hidden, 0);
        normalise(rows.embedded.data + place(r, hidden, 0), tables.embedding_norm.values, hidden,
                  tables.eps, joined);
        normalise(rows.input.data + place(r, hidden, 0), tables.hidden_norm.values, hidden,
                  tables.eps, joined + hidden);
    }
}

// Rotate the rows and store their keys and values at their slots.
inline void rotate_rows(DraftRows& rows, std::int32_t n_rows, const std::int64_t* positions,
                        const std::int64_t* slots, const DraftSizes& sizes, In<float> cosines,
                        In<float> sines, Out<std::uint16_t> keys, Out<std::uint16_t> values) {
    Angles angles = {};
    const std::int32_t q = sizes.q_width();
    const std::int32_t c = sizes.kv_width();
    std::int64_t known = -1;
rotate_rows_of_level:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= n_rows) {
            break;
        }
        float* row = rows.qkv.data + place(r, q + 2 * c, 0);
        // Rows of one level of a request share their position, and so their angles.
        if (positions[r] != known) {
            load_angles(cosines, sines, positions[r], sizes.heads.head_dim / 2, angles);
            known = positions[r];
        }
        rotate_heads(row, sizes.heads.n_heads, sizes.heads.head_dim, angles.cosine, angles.sine);
        rotate_heads(row + q, sizes.heads.n_kv_heads, sizes.heads.head_dim, angles.cosine,
                     angles.sine);
        store_rows(row + q, 1, c, keys + place(slots[r], c, 0));
        store_rows(row + q + c, 1, c, values + place(slots[r], c, 0));
    }
}

// Queries of consecutive rows, closed up.
inline void gather_queries(const DraftRows& rows, std::int32_t first, std::int32_t n_rows,
                           const DraftSizes& sizes, float* out) {
    const std::int32_t q = sizes.q_width();
    const std::int32_t width = q + 2 * sizes.kv_width();
query_row:
    for (std::int32_t r = 0; r < Config::MAX_VERIFY; ++r) {
        if (r >= n_rows) {
            break;
        }
    query_element:
        for (std::int32_t i = 0; i < Config::MAX_DRAFT_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
            if (i >= q) {
                break;
            }
            out[place(r, q, i)] = rows.qkv.data[place(first + r, width, i)];
        }
    }
}

// The feed-forward in tiles of one group: gate and up rows of a tile, then its share of the down
// product, so that the wide row in the middle never exists whole.
inline void feed_forward(const float* x, std::int32_t n_rows, const DraftSizes& sizes,
                         const PortWeights& gate_up, In<std::uint8_t> down,
                         In<std::uint16_t> down_scale, float* out) {
    static WeightRow weight;
    static float tile[Config::MAX_DRAFT_ROWS][Config::MAX_GROUP];
    static float gates[Config::MAX_DRAFT_ROWS];
    const std::int32_t hidden = sizes.hidden;
    constexpr std::int32_t group = Config::MAX_GROUP;
clear_sums:
    for (std::int64_t i = 0; i < Config::MAX_BUFFER; ++i) {
        if (i >= place(n_rows, hidden, 0)) {
            break;
        }
        out[i] = 0.0F;
    }
mlp_tile:
    for (std::int32_t t = 0; t < Config::MAX_DRAFT_WIDTH / 32; ++t) {
        if (t * group >= sizes.mlp) {
            break;
        }
    mlp_neuron:
        for (std::int32_t m = 0; m < Config::MAX_GROUP; ++m) {
            load_weight_row(gate_up, t * group + m, hidden, weight);
        gate_of_row:
            for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
                if (r >= n_rows) {
                    break;
                }
                gates[r] = rounded_to_half(dot(x + place(r, hidden, 0), weight, hidden, group));
            }
            load_weight_row(gate_up, sizes.mlp + t * group + m, hidden, weight);
        up_of_row:
            for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
                if (r >= n_rows) {
                    break;
                }
                const float up =
                    rounded_to_half(dot(x + place(r, hidden, 0), weight, hidden, group));
                tile[r][m] = rounded_to_half(silu(gates[r]) * up);
            }
        }
        const PortWeights share = {down + place(t, hidden, 0) * (group / 2),
                                   down_scale + place(t, hidden, 0), group};
    down_out:
        for (std::int32_t o = 0; o < Config::MAX_DRAFT_WIDTH; ++o) {
            if (o >= hidden) {
                break;
            }
            load_weight_row(share, o, group, weight);
        down_row:
            for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
                if (r >= n_rows) {
                    break;
                }
                out[place(r, hidden, o)] += dot(tile[r], weight, group, group);
            }
        }
    }
round_sums:
    for (std::int64_t i = 0; i < Config::MAX_BUFFER; ++i) {
        if (i >= place(n_rows, hidden, 0)) {
            break;
        }
        out[i] = rounded_to_half(out[i]);
    }
}

inline void add_norm_rows(const float* residual, const float* added, std::int32_t n_rows,
                          std::int32_t hidden, const NormWeight& weight, float eps, float* total,
                          float* normed) {
add_norm:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= n_rows) {
            break;
        }
        const std::int64_t at = place(r, hidden, 0);
        add_row(residual + at, added + at, hidden, total + at);
        normalise(total + at, weight.values, hidden, eps, normed + at);
    }
}

// ---- the head, streamed ----

struct HeadTops {
    Top tops[Config::MAX_DRAFT_ROWS];
    OnlineSum sums[Config::MAX_DRAFT_ROWS];
};

// Every row of the vocabulary once, past all rows: dot product, running sum, running top.
template <typename Weights>
inline void stream_head(const float* x, std::int32_t n_rows, std::int32_t n_in, std::int32_t vocab,
                        const Weights& weights, std::int32_t capacity, HeadTops& tops) {
    static WeightRow weight;
begin_rows_of_head:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= n_rows) {
            break;
        }
        tops.tops[r].count = 0;
        tops.sums[r] = OnlineSum{-INFINITE, 0U};
    }
vocabulary:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
        if (v >= vocab) {
            break;
        }
        load_weight_row(weights, v, n_in, weight);
    score_rows:
        for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
            if (r >= n_rows) {
                break;
            }
            const float logit = dot(x + place(r, n_in, 0), weight, n_in, weights.group);
            offer(tops.tops[r], capacity, logit, v);
            add_power(tops.sums[r], logit);
        }
    }
}

// The candidates of a row by ascending id, so that all rows walk the vocabulary together.
inline void sort_by_id(Top& top) {
sort_entry:
    for (std::int32_t i = 0; i < Config::MAX_TOP; ++i) {
        if (i >= top.count) {
            break;
        }
        const std::int32_t id = top.ids[i];
        const float score = top.scores[i];
        std::int32_t at = i;
    sink_entry:
        for (std::int32_t step = 0; step < Config::MAX_TOP; ++step) {
            if (at == 0 || top.ids[at - 1] < id) {
                break;
            }
            top.ids[at] = top.ids[at - 1];
            top.scores[at] = top.scores[at - 1];
            --at;
        }
        top.ids[at] = id;
        top.scores[at] = score;
    }
}

// Score the candidates again with the whole head: each of its rows that any row of the level wants
// is read once. The sketch's share of the sum is replaced by the exact one. Returns rows read.
inline std::int32_t rescore(const float* x, std::int32_t n_rows, std::int32_t n_in,
                            std::int32_t vocab, const HalfWeights& weights, std::int32_t top_k,
                            HeadTops& tops) {
    static WeightRow weight;
    static std::int32_t next[Config::MAX_DRAFT_ROWS];
    static Top exact[Config::MAX_DRAFT_ROWS];
take_shares:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= n_rows) {
            break;
        }
        OnlineSum& sum = tops.sums[r];
    take_share:
        for (std::int32_t c = 0; c < Config::MAX_TOP; ++c) {
            if (c >= tops.tops[r].count) {
                break;
            }
            const std::uint64_t share = summand(power_of_e(tops.tops[r].scores[c] - sum.largest));
            sum.sum = sum.sum > share ? sum.sum - share : 0U;
        }
        sort_by_id(tops.tops[r]);
        next[r] = 0;
        exact[r].count = 0;
    }
    std::int32_t n_read = 0;
walk_vocabulary:
    for (std::int32_t step = 0; step < Config::MAX_VOCAB; ++step) {
        std::int32_t id = vocab;
    find_next:
        for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
            if (r >= n_rows) {
                break;
            }
            const Top& top = tops.tops[r];
            id = next[r] < top.count ? lower(id, top.ids[next[r]]) : id;
        }
        if (id >= vocab) {
            break;
        }
        load_weight_row(weights, id, n_in, weight);
        ++n_read;
    rescore_rows:
        for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
            if (r >= n_rows) {
                break;
            }
            const Top& top = tops.tops[r];
            if (next[r] < top.count && top.ids[next[r]] == id) {
                const float logit = dot(x + place(r, n_in, 0), weight, n_in, weights.group);
                offer(exact[r], top_k, logit, id);
                add_power(tops.sums[r], logit);
                ++next[r];
            }
        }
    }
keep_exact:
    for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
        if (r >= n_rows) {
            break;
        }
        tops.tops[r] = exact[r];
    }
    return n_read;
}

// Which head: whole in 16 bits, whole in 4, or a sketch whose candidates are scored again.
enum class HeadKind { half = 0, quantised = 1, sketched = 2 };

struct HeadPorts {
    In<std::uint16_t> whole;
    In<std::uint8_t> quantised;
    In<std::uint16_t> quantised_scale;
    In<std::uint8_t> sketch_in;
    In<std::uint16_t> sketch_in_scale;
    In<std::uint8_t> sketch_out;
    In<std::uint16_t> sketch_out_scale;
};

inline std::int32_t best_children(const float* x, std::int32_t n_rows, const DraftSizes& sizes,
                                  HeadKind kind, std::int32_t top_k, std::int32_t n_candidates,
                                  const HeadPorts& ports, HeadTops& tops) {
    static RowBuffer sketched;
    const HalfWeights whole = {ports.whole, Config::MAX_GROUP};
    if (kind == HeadKind::half) {
        stream_head(x, n_rows, sizes.hidden, sizes.vocab, whole, top_k, tops);
    } else if (kind == HeadKind::quantised) {
        const PortWeights weights = {ports.quantised, ports.quantised_scale, Config::MAX_GROUP};
        stream_head(x, n_rows, sizes.hidden, sizes.vocab, weights, top_k, tops);
    } else {
        const PortWeights in = {ports.sketch_in, ports.sketch_in_scale, LANES};
        const PortWeights out = {ports.sketch_out, ports.sketch_out_scale, LANES};
        multiply(x, n_rows, sizes.hidden, sizes.rank, in, ToChip{sketched.data});
        stream_head(sketched.data, n_rows, sizes.rank, sizes.vocab, out, n_candidates, tops);
        return rescore(x, n_rows, sizes.hidden, sizes.vocab, whole, top_k, tops);
    }
    return 0;
}

// Probabilities and tokens of one request's slots, as a level reads them.
struct LevelCandidates {
    float probas[Config::MAX_CANDIDATES];
    std::int64_t tokens[Config::MAX_CANDIDATES];
};

inline void list_candidates(const HeadTops& tops, std::int32_t first, std::int32_t width,
                            std::int32_t top_k, LevelCandidates& out) {
list_slot:
    for (std::int32_t t = 0; t < Config::MAX_TOP_K; ++t) {
        if (t >= width) {
            break;
        }
        const Top& top = tops.tops[first + t];
        const OnlineSum& sum = tops.sums[first + t];
        const Reciprocal reciprocal = reciprocal_of(sum.sum);
    list_child:
        for (std::int32_t k = 0; k < Config::MAX_TOP_K; ++k) {
            if (k >= top_k) {
                break;
            }
            const float d = top.scores[k] - sum.largest;
            out.probas[t * top_k + k] = quotient(power_of_e(d), reciprocal);
            out.tokens[t * top_k + k] = top.ids[k];
        }
    }
}

// ---- the round ----

// Where a round's weights are.
struct DraftWeights {
    In<std::uint16_t> embedding;
    PortWeights qkv;
    PortWeights output;
    bool is_resident;
    PortWeights gate_up;
    In<std::uint8_t> down;
    In<std::uint16_t> down_scale;
    In<float> cosines;
    In<float> sines;
};

// The draft's cache and the table of its slots.
struct DraftCache {
    SlotTable table;
    Out<std::uint16_t> keys;
    Out<std::uint16_t> values;
};

// What a frontier slot sees of the nodes fed so far, and which rows of the level it owns.
struct FedSlots {
    Ancestors seen[2][Config::MAX_TOP_K];
    std::int64_t prefix;
    std::int64_t pool_row;
};

// Rows of a level or of an extension: tokens, positions, slots, and the requests they belong to.
struct DraftLevelRows {
    std::int64_t tokens[Config::MAX_DRAFT_ROWS];
    std::int64_t positions[Config::MAX_DRAFT_ROWS];
    std::int64_t slots[Config::MAX_DRAFT_ROWS];
    std::int32_t first[Config::MAX_BATCH + 1];
    std::int32_t n_rows;
};

template <typename Weights>
inline void project(const float* x, std::int32_t n_rows, std::int32_t n_in, std::int32_t n_out,
                    const Weights& weights, float* out) {
    multiply(x, n_rows, n_in, n_out, weights, ToChip{out});
}

// Everything up to the attention's output projection; keys and values are stored on the way.
inline void attention_block(DraftRows& rows, const DraftLevelRows& level, std::int32_t B,
                            std::int32_t n_fed, bool is_level, std::int32_t parity,
                            const FedSlots (&fed)[Config::MAX_BATCH], const DraftTables& tables,
                            const DraftSizes& sizes, const DraftWeights& weights,
                            const DraftCache& cache) {
    static RowBuffer queries;
    static Sight sights[Config::MAX_VERIFY];
    const std::int32_t q = sizes.q_width();
    const std::int32_t width = q + 2 * sizes.kv_width();
    const ResidentAttention& block = resident_attention();
    embed(weights.embedding, level.tokens, level.n_rows, sizes.hidden, rows.embedded.data);
    join_norms(rows, level.n_rows, tables, sizes.hidden);
    if (weights.is_resident) {
        const ChipWeights own = {block.qkv, block.qkv_scales, Config::MAX_GROUP};
        project(rows.joined.data, level.n_rows, 2 * sizes.hidden, width, own, rows.qkv.data);
    } else {
        project(rows.joined.data, level.n_rows, 2 * sizes.hidden, width, weights.qkv,
                rows.qkv.data);
    }
    rotate_rows(rows, level.n_rows, level.positions, level.slots, sizes, weights.cosines,
                weights.sines, cache.keys, cache.values);
attend_batch:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int32_t first = level.first[b];
        const std::int32_t n_rows = level.first[b + 1] - first;
    see_level_rows:
        for (std::int32_t r = 0; r < Config::MAX_VERIFY; ++r) {
            if (r >= n_rows) {
                break;
            }
            const std::int64_t position = level.positions[first + r];
            sights[r] = sight_of(position, is_level ? fed[b].prefix : position + 1, sizes.window);
            if (is_level) {
                sights[r].tree = fed[b].seen[parity][r];
            }
        }
        gather_queries(rows, first, n_rows, sizes, queries.data);
        attend_request(queries.data, n_rows, sights, fed[b].prefix, is_level ? n_fed : 0,
                       cache.table.slots + place(fed[b].pool_row, cache.table.width, 0),
                       as_input(cache.keys), as_input(cache.values), sizes.heads,
                       rows.attended.data + place(first, q, 0));
    }
    if (weights.is_resident) {
        const ChipWeights own = {block.output, block.output_scales, Config::MAX_GROUP};
        project(rows.attended.data, level.n_rows, q, sizes.hidden, own, rows.added.data);
    } else {
        project(rows.attended.data, level.n_rows, q, sizes.hidden, weights.output,
                rows.added.data);
    }
}

// Residual, feed-forward, final norm: `hidden` is what the next level reads, `normed` the head.
inline void feed_block(DraftRows& rows, std::int32_t n_rows, const DraftTables& tables,
                       const DraftSizes& sizes, const DraftWeights& weights) {
    static RowBuffer stream;
    add_norm_rows(rows.input.data, rows.added.data, n_rows, sizes.hidden, tables.mlp_norm,
                  tables.eps, stream.data, rows.normed.data);
    feed_forward(rows.normed.data, n_rows, sizes, weights.gate_up, weights.down,
                 weights.down_scale, rows.added.data);
    add_norm_rows(stream.data, rows.added.data, n_rows, sizes.hidden, tables.final_norm,
                  tables.eps, rows.hidden.data, rows.normed.data);
}

// The last row of each request, closed up: what a draft starts from.
inline void keep_last_rows(DraftRows& rows, const DraftLevelRows& level, std::int32_t B,
                           std::int32_t hidden) {
keep_last:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const std::int32_t last = level.first[b + 1] - 1;
    keep_element:
        for (std::int32_t i = 0; i < Config::MAX_DRAFT_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
            if (i >= hidden) {
                break;
            }
            rows.input.data[place(b, hidden, i)] = rows.input.data[place(last, hidden, i)];
            rows.added.data[place(b, hidden, i)] = rows.added.data[place(last, hidden, i)];
        }
    }
}

// The next level's rows: tokens of the frontier, hidden states of their parents, their slots.
inline void next_level(ChipState& chip, DraftRows& rows, std::int32_t B, std::int32_t depth,
                       std::int32_t old_width, std::int32_t width, std::int32_t n_fed,
                       const DraftSizes& sizes, const DraftCache& cache,
                       FedSlots (&fed)[Config::MAX_BATCH], DraftLevelRows& level) {
    const std::int32_t parity = depth % 2;
    level.n_rows = B * width;
    level.first[0] = 0;
next_request:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        const ChipRequest& request = chip.requests[b];
        const ChipFrontier& frontier = request.frontiers[parity];
        level.first[b + 1] = (b + 1) * width;
    next_slot:
        for (std::int32_t t = 0; t < Config::MAX_TOP_K; ++t) {
            if (t >= width) {
                break;
            }
            const std::int32_t row = b * width + t;
            const std::int32_t parent = frontier.parent_slots[t];
            const std::int32_t column = n_fed + t;
            // A refused request goes along with token 0: nothing of it is looked at again.
            const bool is_refused_now = is_refused(request.refusal);
            level.tokens[row] = is_refused_now ? 0 : request.nodes.tokens[frontier.nodes[t]];
            level.positions[row] = fed[b].prefix + depth - 1;
            level.slots[row] =
                cache.table.slots[place(fed[b].pool_row, cache.table.width,
                                        fed[b].prefix + column)];
            Ancestors seen = {{0U, 0U, 0U, 0U}};
            // The first level hangs on the root, which is no fed node.
            if (depth > 1) {
                seen = fed[b].seen[1 - parity][is_refused_now ? 0 : parent];
            }
            seen.word[column / 32] |= 1U << (column % 32);
            fed[b].seen[parity][t] = seen;
            const std::int32_t source = b * old_width + (is_refused_now ? 0 : parent);
        copy_hidden:
            for (std::int32_t i = 0; i < Config::MAX_DRAFT_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
                if (i >= sizes.hidden) {
                    break;
                }
                rows.input.data[place(row, sizes.hidden, i)] =
                    rows.hidden.data[place(source, sizes.hidden, i)];
            }
        }
    }
}

// Slots worth feeding: as many as add at least the floor each, at most `most`.
inline std::int32_t chosen_width(const Exact (&gains)[Config::MAX_TOP_K + 1], std::int32_t B,
                                 std::int32_t most, float floor) {
    std::int32_t width = 0;
count_worth:
    for (std::int32_t k = 0; k < Config::MAX_TOP_K; ++k) {
        if (k >= most) {
            break;
        }
        const Exact step = sum_of(gains[k + 1], negated(gains[k]));
        const float gain = mean_of(step, static_cast<std::uint32_t>(higher(B, 1)));
        width += gain >= floor && width == k ? 1 : 0;
    }
    return width;
}

inline void fused_draft(
    std::int32_t B, std::int32_t R, std::int32_t TH, std::int32_t H, std::int32_t C,
    std::int32_t /*VT*/, std::int32_t /*S*/, std::int32_t /*NP*/, std::int32_t HD, std::int32_t D,
    std::int32_t P, std::int32_t L, std::int32_t /*NN*/, std::int32_t /*N0*/, std::int32_t /*N1*/,
    std::int32_t /*N2*/, std::int32_t /*N3*/, std::int32_t /*N4*/, std::int32_t /*N5*/,
    std::int32_t /*N6*/, std::int32_t /*N7*/, std::int32_t /*N8*/, std::int32_t /*N9*/,
    std::int32_t /*N10*/, std::int32_t /*N11*/, std::int32_t /*N12*/, std::int32_t /*N13*/,
    std::int32_t /*N14*/, std::int32_t /*N15*/, std::int32_t K, std::int32_t verify_num,
    std::int32_t row_capacity, std::int32_t kv_capacity, std::int32_t mask_capacity,
    std::int32_t Q, std::int32_t M, std::int32_t V, std::int32_t window, std::int32_t head_kind,
    std::int32_t RK, std::int32_t n_candidates, std::int32_t has_fc, std::int32_t /*has_fc_q4*/,
    std::int32_t /*has_fc_q4_scale*/, std::int32_t has_qkv, std::int32_t /*has_qkv_scale*/,
    std::int32_t /*has_output*/, std::int32_t /*has_output_scale*/, std::int32_t /*has_head*/,
    std::int32_t /*has_head_q4*/, std::int32_t /*has_head_q4_scale*/,
    std::int32_t /*has_sketch_in*/, std::int32_t /*has_sketch_in_scale*/,
    std::int32_t /*has_sketch_out*/, std::int32_t /*has_sketch_out_scale*/,
    In<std::uint16_t> features, In<std::int64_t> new_tokens, In<std::int64_t> new_positions,
    In<std::int32_t> row_indptr, In<std::int32_t> widths, In<std::int64_t> root_tokens,
    In<std::int64_t> seq_len, In<std::int32_t> req_to_token, In<std::int64_t> req_pool_indices,
    In<float> gain_floor, In<std::uint16_t> embedding, In<std::uint16_t> fc,
    In<std::uint8_t> fc_q4, In<std::uint16_t> fc_q4_scale, In<float> norms, In<float> eps,
    In<float> cosines, In<float> sines, In<std::uint8_t> qkv, In<std::uint16_t> qkv_scale,
    In<std::uint8_t> output, In<std::uint16_t> output_scale, In<std::uint8_t> gate_up,
    In<std::uint16_t> gate_up_scale, In<std::uint8_t> down, In<std::uint16_t> down_scale,
    In<std::uint16_t> head, In<std::uint8_t> head_q4, In<std::uint16_t> head_q4_scale,
    In<std::uint8_t> sketch_in, In<std::uint16_t> sketch_in_scale, In<std::uint8_t> sketch_out,
    In<std::uint16_t> sketch_out_scale, Out<std::uint16_t> keys, Out<std::uint16_t> values,
    Out<std::int32_t> used_widths, Out<std::int32_t> rescored, Out<float> G,
    Out<std::int32_t> qo_indptr,
    Out<std::int64_t> draft_tokens, Out<std::int64_t> positions, Out<std::uint32_t> ancestor_bits,
    Out<std::int32_t> kv_indptr, Out<std::int32_t> kv_indices, Out<std::int32_t> mask_indptr,
    Out<std::uint8_t> packed_mask, Out<std::int32_t> status, Out<std::int64_t> detail) {
    static DraftTables tables;
    static DraftLevelRows level;
    static FedSlots fed[Config::MAX_BATCH];
    static HeadTops tops;
    static LevelCandidates candidates;
    ChipState& chip = chip_state();
    DraftRows& rows = draft_rows();
    const DraftSizes sizes = {H, M, V, RK, HeadSizes{Q / (2 * HD), C / (2 * HD), 2 * HD}, window};
    const SlotTable table = {req_to_token, P, L};
    const DraftCache cache = {table, keys, values};
    const DraftWeights weights = {embedding,
                                  PortWeights{qkv, qkv_scale, Config::MAX_GROUP},
                                  PortWeights{output, output_scale, Config::MAX_GROUP},
                                  has_qkv == 0,
                                  PortWeights{gate_up, gate_up_scale, Config::MAX_GROUP},
                                  down,
                                  down_scale,
                                  cosines,
                                  sines};
    const HeadPorts head_ports = {head,      head_q4,         head_q4_scale,   sketch_in,
                                  sketch_in_scale, sketch_out, sketch_out_scale};
    load(norms, H, tables.embedding_norm.values);
    load(norms + H, H, tables.hidden_norm.values);
    load(norms + place(2, H, 0), H, tables.mlp_norm.values);
    load(norms + place(3, H, 0), H, tables.final_norm.values);
    tables.eps = eps[0];
    plant_batch(chip, B, root_tokens);
    // New tokens of each request: their features through fc, then the layer.
    level.n_rows = R;
    load(new_tokens, R, level.tokens);
    load(new_positions, R, level.positions);
    load(row_indptr, B + 1, level.first);
begin_requests:
    for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
        if (b >= B) {
            break;
        }
        fed[b].prefix = seq_len[b];
        fed[b].pool_row = req_pool_indices[b];
    begin_slots:
        for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
            if (level.first[b] + r >= level.first[b + 1]) {
                break;
            }
            const std::int32_t row = level.first[b] + r;
            level.slots[row] = req_to_token[place(fed[b].pool_row, L, level.positions[row])];
        }
    }
    load_rows(features, R, TH, rows.joined.data);
    if (has_fc != 0) {
        project(rows.joined.data, R, TH, H, HalfWeights{fc, Config::MAX_GROUP}, rows.input.data);
    } else {
        project(rows.joined.data, R, TH, H, PortWeights{fc_q4, fc_q4_scale, Config::MAX_GROUP},
                rows.input.data);
    }
    attention_block(rows, level, B, 0, false, 0, fed, tables, sizes, weights, cache);
    keep_last_rows(rows, level, B, H);
    std::int32_t count = 1;
    std::int32_t width = 1;
    std::int32_t n_fed = 0;
levels:
    for (std::int32_t d = 0; d < Config::MAX_LEVELS; ++d) {
        if (d >= D) {
            break;
        }
        std::int32_t n_rescored = 0;
        used_widths[d] = width;
        Exact gains[Config::MAX_TOP_K + 1] = {};
        if (width > 0) {
            feed_block(rows, B * width, tables, sizes, weights);
            n_rescored = best_children(rows.normed.data, B * width, sizes,
                                       static_cast<HeadKind>(head_kind), K, n_candidates,
                                       head_ports, tops);
            const Layer layer = {width, K, width * K};
        grow_requests:
            for (std::int32_t b = 0; b < Config::MAX_BATCH; ++b) {
                if (b >= B) {
                    break;
                }
                ChipRequest& request = chip.requests[b];
                if (is_refused(request.refusal)) {
                    continue;
                }
                list_candidates(tops, b * width, width, K, candidates);
                grow_level(candidates.probas, candidates.tokens, layer, count,
                           static_cast<std::uint8_t>(d + 1), verify_num, request.frontiers[d % 2],
                           request.frontiers[(d + 1) % 2], request.nodes, request.running,
                           request.refusal, gains);
            }
            count += layer.n;
        }
        rescored[d] = n_rescored;
        emit_level_gains(gains, K, B, G + place(d, K + 1, 0));
        if (width > 0 && d + 1 < D) {
            const std::int32_t most = lower(widths[d + 1], K);
            const std::int32_t next = chosen_width(gains, B, most, gain_floor[d]);
            if (next > 0) {
                next_level(chip, rows, B, d + 1, width, next, n_fed, sizes, cache, fed, level);
                n_fed += next;
                attention_block(rows, level, B, n_fed, true, (d + 1) % 2, fed, tables, sizes,
                                weights, cache);
            }
            width = next;
        }
    }
    lay_out_batch(chip, B, count, verify_num, seq_len, req_pool_indices, table,
                  LayoutCapacity{row_capacity, kv_capacity, mask_capacity},
                  LayoutPorts{qo_indptr, draft_tokens, positions, ancestor_bits, kv_indptr,
                              kv_indices, mask_indptr, packed_mask, status, detail});
}

}  // namespace aerie
