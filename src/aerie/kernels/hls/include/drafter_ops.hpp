// Operations of a draft head, each on rows that lie on chip: products, norms, rotation, attention.
//
// A kernel by itself loads its rows, computes and stores; the fused draft chains the same functions
// through buffers on chip. Values between operations are rounded to 16-bit floats in both, sums are
// 32-bit floats in a fixed order, so both give the same bits.
#pragma once

#include "config.hpp"
#include "half.hpp"
#include "numeric.hpp"
#include "ports.hpp"
#include "softmax.hpp"

namespace aerie {

// Multiply-add lanes of one dot product; a group is a multiple of it.
constexpr std::int32_t LANES = 32;

// ---- rows on chip ----

// Rows of one width, row after row; the capacity is the chip's, the width a model's.
struct RowBuffer {
    float data[Config::MAX_DRAFT_ROWS * Config::MAX_DRAFT_WIDTH];
};

inline void load_rows(In<std::uint16_t> port, std::int32_t n_rows, std::int32_t width,
                      float* rows) {
load_element:
    for (std::int64_t i = 0; i < Config::MAX_BUFFER; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= place(n_rows, width, 0)) {
            break;
        }
        rows[i] = from_half(port[i]);
    }
}

inline void store_rows(const float* rows, std::int32_t n_rows, std::int32_t width,
                       Out<std::uint16_t> port) {
store_element:
    for (std::int64_t i = 0; i < Config::MAX_BUFFER; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= place(n_rows, width, 0)) {
            break;
        }
        port[i] = to_half(rows[i]);
    }
}

// ---- weights ----

// One row of a weight as it is multiplied: plain values, and a scale for each group of them.
struct WeightRow {
    float values[Config::MAX_DRAFT_WIDTH];
    float scales[Config::MAX_DRAFT_WIDTH / LANES];
};

// 16-bit floats; groups of 128 keep the order of sums that a quantised weight has.
struct HalfWeights {
    In<std::uint16_t> data;
    std::int32_t group;
};

inline void load_weight_row(const HalfWeights& weights, std::int64_t row, std::int32_t n_in,
                            WeightRow& out) {
load_half:
    for (std::int32_t i = 0; i < Config::MAX_DRAFT_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n_in) {
            break;
        }
        out.values[i] = from_half(weights.data[place(row, n_in, i)]);
    }
unit_scale:
    for (std::int32_t g = 0; g < Config::MAX_DRAFT_WIDTH / 32; ++g) {
#pragma HLS PIPELINE II=1
        if (g * weights.group >= n_in) {
            break;
        }
        out.scales[g] = 1.0F;
    }
}

// Two 4-bit integers a byte, the lower first, less 8; one 16-bit scale a group.
template <typename Bytes, typename Halves>
struct Quantised {
    Bytes nibbles;
    Halves scales;
    std::int32_t group;
};

template <typename Bytes, typename Halves>
inline void load_weight_row(const Quantised<Bytes, Halves>& weights, std::int64_t row,
                            std::int32_t n_in, WeightRow& out) {
load_nibbles:
    for (std::int32_t i = 0; i < Config::MAX_DRAFT_WIDTH / 2; ++i) {
#pragma HLS PIPELINE II=1
        if (2 * i >= n_in) {
            break;
        }
        const std::uint8_t byte = weights.nibbles[place(row, n_in / 2, i)];
        out.values[2 * i] = static_cast<float>(static_cast<std::int32_t>(byte & 15U) - 8);
        out.values[2 * i + 1] = static_cast<float>(static_cast<std::int32_t>(byte >> 4) - 8);
    }
load_scales:
    for (std::int32_t g = 0; g < Config::MAX_DRAFT_WIDTH / 32; ++g) {
#pragma HLS PIPELINE II=1
        if (g * weights.group >= n_in) {
            break;
        }
        out.scales[g] = from_half(weights.scales[place(row, n_in / weights.group, g)]);
    }
}

using PortWeights = Quantised<In<std::uint8_t>, In<std::uint16_t>>;
using ChipWeights = Quantised<const std::uint8_t*, const std::uint16_t*>;

// ---- products ----

// Partial sums in the order of a tree of adders.
inline float sum_lanes(float (&lanes)[LANES]) {
fold_lanes:
    for (std::int32_t step = 0; step < 5; ++step) {
    fold_pair:
        for (std::int32_t lane = 0; lane < LANES / 2; ++lane) {
#pragma HLS UNROLL
            const std::int32_t width = LANES >> (step + 1);
            if (lane < width) {
                lanes[lane] += lanes[lane + width];
            }
        }
    }
    return lanes[0];
}

inline float dot(const float* x, const WeightRow& weight, std::int32_t n_in, std::int32_t group) {
    float sum = 0.0F;
dot_group:
    for (std::int32_t g = 0; g < Config::MAX_DRAFT_WIDTH / 32; ++g) {
        if (g * group >= n_in) {
            break;
        }
        float lanes[LANES] = {};
    dot_step:
        for (std::int32_t step = 0; step < Config::MAX_GROUP / 32; ++step) {
#pragma HLS PIPELINE II=1
            if (step * LANES >= group) {
                break;
            }
            const float* left = x + g * group + step * LANES;
            const float* right = weight.values + g * group + step * LANES;
        multiply_add:
            for (std::int32_t lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
                lanes[lane] += left[lane] * right[lane];
            }
        }
        sum += sum_lanes(lanes) * weight.scales[g];
    }
    return sum;
}

// Where a product goes: rows on chip, rows in memory, or logits in memory.
struct ToChip {
    float* rows;
};

struct ToPort {
    Out<std::uint16_t> rows;
};

struct ToLogits {
    Out<float> rows;
};

inline void put(const ToChip& sink, std::int64_t at, float value) {
    sink.rows[at] = rounded_to_half(value);
}

inline void put(const ToPort& sink, std::int64_t at, float value) {
    sink.rows[at] = to_half(value);
}

inline void put(const ToLogits& sink, std::int64_t at, float value) { sink.rows[at] = value; }

// Rows times a weight: every row of the weight is read once for all rows.
template <typename Weights, typename Sink>
inline void multiply(const float* x, std::int32_t n_rows, std::int32_t n_in, std::int32_t n_out,
                     const Weights& weights, const Sink& sink) {
    static WeightRow weight;
multiply_out:
    for (std::int32_t o = 0; o < Config::MAX_VOCAB; ++o) {
        if (o >= n_out) {
            break;
        }
        load_weight_row(weights, o, n_in, weight);
    multiply_row:
        for (std::int32_t r = 0; r < Config::MAX_DRAFT_ROWS; ++r) {
            if (r >= n_rows) {
                break;
            }
            put(sink, place(r, n_out, o),
                dot(x + place(r, n_in, 0), weight, n_in, weights.group));
        }
    }
}

// ---- norms and gates ----

inline float square_sum(const float* x, std::int32_t n) {
    float lanes[LANES] = {};
square_step:
    for (std::int32_t step = 0; step < Config::MAX_DRAFT_WIDTH / 32; ++step) {
#pragma HLS PIPELINE II=1
        if (step * LANES >= n) {
            break;
        }
    square_lane:
        for (std::int32_t lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            const float value = x[step * LANES + lane];
            lanes[lane] += value * value;
        }
    }
    return sum_lanes(lanes);
}

// Weight times x over its root mean square; `out` may be wider than one row's part of it.
inline void normalise(const float* x, const float* weight, std::int32_t n, float eps, float* out) {
    const float scale = 1.0F / square_root(square_sum(x, n) / static_cast<float>(n) + eps);
normalise_element:
    for (std::int32_t i = 0; i < Config::MAX_DRAFT_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        out[i] = rounded_to_half((x[i] * scale) * weight[i]);
    }
}

inline void add_row(const float* a, const float* b, std::int32_t n, float* out) {
add_element:
    for (std::int32_t i = 0; i < Config::MAX_DRAFT_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        out[i] = rounded_to_half(a[i] + b[i]);
    }
}

// exp(d) for d <= 0 as a float, by the same table as every softmax here.
inline float exp_of(float d) { return quotient(power_of_e(d), reciprocal_of(1ULL << 46)); }

// x times the logistic function of x.
inline float silu(float x) {
    const float e = exp_of(x < 0.0F ? x : -x);
    const float share = x < 0.0F ? e / (1.0F + e) : 1.0F / (1.0F + e);
    return x * share;
}

inline void gate_row(const float* gate_up, std::int32_t width, float* out) {
gate_element:
    for (std::int32_t i = 0; i < Config::MAX_DRAFT_WIDTH; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= width) {
            break;
        }
        out[i] = rounded_to_half(silu(gate_up[i]) * gate_up[width + i]);
    }
}

// ---- attention ----

// Heads of one layer.
struct HeadSizes {
    std::int32_t n_heads;
    std::int32_t n_kv_heads;
    std::int32_t head_dim;
};

// Rotate the heads of one row in place; pairs are (i, i + head_dim / 2).
inline void rotate_heads(float* heads, std::int32_t n_heads, std::int32_t head_dim,
                         const float (&cosine)[Config::MAX_HEAD_DIM],
                         const float (&sine)[Config::MAX_HEAD_DIM]) {
    const std::int32_t half = head_dim / 2;
rotate_head:
    for (std::int32_t h = 0; h < Config::MAX_HEADS; ++h) {
        if (h >= n_heads) {
            break;
        }
        float* head = heads + place(h, head_dim, 0);
    rotate_pair:
        for (std::int32_t i = 0; i < Config::MAX_HEAD_DIM / 2; ++i) {
#pragma HLS PIPELINE II=1
            if (i >= half) {
                break;
            }
            const float first = head[i];
            const float second = head[half + i];
            head[i] = rounded_to_half(first * cosine[i] - second * sine[i]);
            head[half + i] = rounded_to_half(second * cosine[i] + first * sine[i]);
        }
    }
}

// Attention of one row's heads so far: the largest score, the sum of powers, the weighted values.
struct Attending {
    float largest[Config::MAX_HEADS];
    float sum[Config::MAX_HEADS];
    float values[Config::MAX_DRAFT_WIDTH];
};

inline void begin_attending(Attending& row, const HeadSizes& heads) {
begin_head:
    for (std::int32_t h = 0; h < Config::MAX_HEADS; ++h) {
        if (h >= heads.n_heads) {
            break;
        }
        row.largest[h] = -INFINITE;
        row.sum[h] = 0.0F;
    begin_value:
        for (std::int32_t i = 0; i < Config::MAX_HEAD_DIM; ++i) {
            if (i >= heads.head_dim) {
                break;
            }
            row.values[place(h, heads.head_dim, i)] = 0.0F;
        }
    }
}

inline float head_dot(const float* a, const float* b, std::int32_t n) {
    float lanes[LANES] = {};
head_step:
    for (std::int32_t step = 0; step < Config::MAX_HEAD_DIM / 32; ++step) {
#pragma HLS PIPELINE II=1
        if (step * LANES >= n) {
            break;
        }
    head_lane:
        for (std::int32_t lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            lanes[lane] += a[step * LANES + lane] * b[step * LANES + lane];
        }
    }
    return sum_lanes(lanes);
}

// One more position: its key and value are on chip and serve every row that sees it.
inline void attend_position(Attending& row, const float* queries, const float* key,
                            const float* value, const HeadSizes& heads, float scale) {
    const std::int32_t shared = heads.n_heads / heads.n_kv_heads;
attend_head:
    for (std::int32_t h = 0; h < Config::MAX_HEADS; ++h) {
        if (h >= heads.n_heads) {
            break;
        }
        const std::int64_t own = place(h, heads.head_dim, 0);
        const std::int64_t stored = place(h / shared, heads.head_dim, 0);
        const float score = head_dot(queries + own, key + stored, heads.head_dim) * scale;
        const float before = row.largest[h];
        const float largest = score > before ? score : before;
        const float shrink = before == largest ? 1.0F : exp_of(before - largest);
        const float weight = exp_of(score - largest);
        row.largest[h] = largest;
        row.sum[h] = row.sum[h] * shrink + weight;
    attend_value:
        for (std::int32_t i = 0; i < Config::MAX_HEAD_DIM; ++i) {
#pragma HLS PIPELINE II=1
            if (i >= heads.head_dim) {
                break;
            }
            row.values[own + i] = row.values[own + i] * shrink + weight * value[stored + i];
        }
    }
}

inline void finish_attending(const Attending& row, const HeadSizes& heads, float* out) {
finish_head:
    for (std::int32_t h = 0; h < Config::MAX_HEADS; ++h) {
        if (h >= heads.n_heads) {
            break;
        }
    finish_value:
        for (std::int32_t i = 0; i < Config::MAX_HEAD_DIM; ++i) {
#pragma HLS PIPELINE II=1
            if (i >= heads.head_dim) {
                break;
            }
            const std::int64_t at = place(h, heads.head_dim, i);
            out[at] = rounded_to_half(row.values[at] / row.sum[h]);
        }
    }
}

// ---- the head's best children ----

// A running top of a row: scores descending, the lower id first among equals.
struct Top {
    float scores[Config::MAX_TOP];
    std::int32_t ids[Config::MAX_TOP];
    std::int32_t count;
};

// Ids come ascending, so a newcomer that only equals an entry stays behind it.
inline void offer(Top& top, std::int32_t capacity, float score, std::int32_t id) {
    if (top.count == capacity && !(score > top.scores[capacity - 1])) {
        return;
    }
    std::int32_t at = 0;
find_place:
    for (std::int32_t i = 0; i < Config::MAX_TOP; ++i) {
#pragma HLS UNROLL
        if (i < top.count && !(score > top.scores[i])) {
            at = i + 1;
        }
    }
    const std::int32_t last = lower(top.count, capacity - 1);
shift_down:
    for (std::int32_t i = 0; i < Config::MAX_TOP; ++i) {
#pragma HLS UNROLL
        const std::int32_t from = last - 1 - i;
        if (from >= at) {
            top.scores[from + 1] = top.scores[from];
            top.ids[from + 1] = top.ids[from];
        }
    }
    top.scores[at] = score;
    top.ids[at] = id;
    top.count = last + 1;
}

// A running softmax: the largest score and the sum of powers below it, in 2^-46.
struct OnlineSum {
    float largest;
    std::uint64_t sum;
};

inline void add_power(OnlineSum& online, float score) {
    if (score > online.largest) {
        const Power shrink = power_of_e(online.largest - score);
        // The old sum shrinks by exp(old - new): its upper 32 bits times the mantissa.
        const std::uint64_t high = (online.sum >> 32) * shrink.mantissa;
        const std::uint64_t low = ((online.sum & 0xFFFFFFFFULL) * shrink.mantissa) >> 32;
        const std::uint64_t whole = high + low;  // the product in 2^-45
        online.sum = shrink.down == 0   ? whole << 1
                     : shrink.down < 64 ? whole >> (shrink.down - 1)
                                        : 0U;
        online.largest = score;
        online.sum += 1ULL << 46;
    } else {
        online.sum += summand(power_of_e(score - online.largest));
    }
}

}  // namespace aerie
