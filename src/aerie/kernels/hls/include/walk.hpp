// The two acceptance rules of K6 on one request's tree.
#pragma once

#include "config.hpp"
#include "exact.hpp"
#include "numeric.hpp"
#include "ports.hpp"
#include "ragged.hpp"

namespace aerie {

// A link to nobody. Once links are checked, every other one is a row.
constexpr std::int64_t NONE = -1;

// One request's rows: tokens and links, row 0 the root.
struct Tree {
    std::int64_t tokens[Config::MAX_VERIFY];
    std::int64_t first_child[Config::MAX_VERIFY];
    std::int64_t next_sibling[Config::MAX_VERIFY];
    std::int32_t count;
};

inline void load_tree(In<std::int64_t> tokens, In<std::int64_t> first_child,
                      In<std::int64_t> next_sibling, const Rows& rows, Tree& tree) {
    tree.count = rows.count;
    load(tokens + rows.first, rows.count, tree.tokens);
    load(first_child + rows.first, rows.count, tree.first_child);
    load(next_sibling + rows.first, rows.count, tree.next_sibling);
}

// A path from the root and the token after it; `depth` is negative when it would pass the limit.
struct Path {
    std::int64_t rows[Config::MAX_RUN];
    std::int32_t depth;
    std::int64_t bonus;
};

// Every row but the root is pointed at once, by a row before it.
inline std::int32_t find_broken_row(const Tree& tree) {
    std::int32_t pointed_at[Config::MAX_VERIFY] = {};
#pragma HLS ARRAY_PARTITION variable=pointed_at complete
count_links:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= tree.count) {
            break;
        }
        const std::int64_t links[2] = {tree.first_child[row], tree.next_sibling[row]};
    count_link:
        for (std::int32_t k = 0; k < 2; ++k) {
#pragma HLS UNROLL
            if (links[k] != NONE) {
                if (links[k] <= row || links[k] >= tree.count) {
                    return row;
                }
                ++pointed_at[links[k]];
            }
        }
    }
check_links_once:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= tree.count) {
            break;
        }
        if (pointed_at[row] != (row > 0 ? 1 : 0)) {
            return row;
        }
    }
    return tree.count > 0 && tree.next_sibling[0] != NONE ? 0 : -1;
}

// Whether a sibling after or before a row carries the same token; links were checked.
inline bool has_twin(const Tree& tree, std::int64_t first, std::int64_t child) {
    std::int64_t other = first;
    bool found = false;
visit_siblings:
    for (std::int32_t step = 0; step < Config::MAX_VERIFY; ++step) {
        if (other == NONE) {
            break;
        }
        found = found || (other != child && tree.tokens[other] == tree.tokens[child]);
        other = tree.next_sibling[other];
    }
    return found;
}

inline void check_walk(Refusal& refusal, const Tree& tree) {
    const std::int32_t broken = find_broken_row(tree);
    if (broken >= 0) {
        refuse(refusal, Status::BROKEN_TREE, broken);
        return;
    }
check_children:
    for (std::int32_t row = 0; row < Config::MAX_VERIFY; ++row) {
        if (row >= tree.count) {
            break;
        }
        std::int64_t child = tree.first_child[row];
    check_child:
        for (std::int32_t step = 0; step < Config::MAX_VERIFY; ++step) {
            if (child == NONE) {
                break;
            }
            if (has_twin(tree, tree.first_child[row], child)) {
                refuse(refusal, Status::DUPLICATE_SIBLING, tree.tokens[child]);
            }
            child = tree.next_sibling[child];
        }
    }
}

// The child that carries a token, or -1.
inline std::int64_t child_with(const Tree& tree, std::int64_t row, std::int64_t token) {
    std::int64_t child = tree.first_child[row];
    std::int64_t found = NONE;
match_child:
    for (std::int32_t step = 0; step < Config::MAX_VERIFY; ++step) {
        if (child == NONE || found != NONE) {
            break;
        }
        found = tree.tokens[child] == token ? child : NONE;
        child = tree.next_sibling[child];
    }
    return found;
}

// The child on which a coin falls, or -1: strictly below the running sum of probabilities.
inline std::int64_t child_under(const Tree& tree, std::int64_t row,
                                const float (&probas)[Config::MAX_VOCAB], float coin) {
    const Exact toss = exactly(coin);
    std::int64_t child = tree.first_child[row];
    std::int64_t found = NONE;
    Exact running = {};
toss_child:
    for (std::int32_t step = 0; step < Config::MAX_VERIFY; ++step) {
        if (child == NONE || found != NONE) {
            break;
        }
        running = sum_of(running, exactly(probas[tree.tokens[child]]));
        found = is_below(toss, running) ? child : NONE;
        child = tree.next_sibling[child];
    }
    return found;
}

// Take the tokens of a node's children out of its row: the bonus token may not be one of them.
inline void reject_children(const Tree& tree, std::int64_t row,
                            float (&probas)[Config::MAX_VOCAB]) {
    std::int64_t child = tree.first_child[row];
reject_child:
    for (std::int32_t step = 0; step < Config::MAX_VERIFY; ++step) {
        if (child == NONE) {
            break;
        }
        probas[tree.tokens[child]] = 0.0F;
        child = tree.next_sibling[child];
    }
}

// The token a coin picks from what a row still holds, or `best` if that is nothing.
inline std::int64_t pick(const float (&probas)[Config::MAX_VOCAB], std::int32_t V, float coin,
                         std::int32_t best) {
    Exact total = {};
sum_left:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V) {
            break;
        }
        total = sum_of(total, exactly(probas[v]));
    }
    if (is_zero(total)) {
        return best;
    }
    // A prefix sum is a multiple of 2^-149, so it exceeds the share iff it exceeds its floor.
    const Exact threshold = share_of(total, coin);
    Exact running = {};
    std::int64_t found = NONE;
find_token:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE II=1
        if (v >= V || found != NONE) {
            break;
        }
        running = sum_of(running, exactly(probas[v]));
        found = is_below(threshold, running) ? v : NONE;
    }
    return found;
}

// Follow the target's own tokens.
inline void walk_matching(const Tree& tree, const std::int64_t (&target_tokens)[Config::MAX_VERIFY],
                          std::int32_t tree_depth, Path& path) {
    path.depth = 0;
    path.rows[0] = 0;
match_step:
    for (std::int32_t step = 0; step < Config::MAX_RUN; ++step) {
        const std::int64_t row = path.rows[path.depth];
        path.bonus = target_tokens[row];
        const std::int64_t child = child_with(tree, row, path.bonus);
        if (child == NONE) {
            break;
        }
        if (path.depth >= tree_depth) {
            path.depth = -1;
            break;
        }
        ++path.depth;
        path.rows[path.depth] = child;
    }
}

// Coins of one request: one for each depth, the last picks the bonus token.
struct Coins {
    float toss[Config::MAX_RUN + 1];
};

// Where a walk by coins stands: the next node, unless it has ended or would pass the limit.
struct Tossing {
    Path path;
    bool has_ended;
};

inline Tossing begin_tossing() {
    Tossing tossing = {};
    tossing.has_ended = false;
    return tossing;
}

// One row of probabilities on chip. Rows come in order and parents come first, so the walk takes a
// step whenever its node's row is there and never looks back. `best` is the row's argmax.
inline void toss_row(Tossing& tossing, const Tree& tree, std::int32_t row,
                     float (&probas)[Config::MAX_VOCAB], std::int32_t V, std::int32_t best,
                     const Coins& coins, std::int32_t tree_depth) {
    Path& path = tossing.path;
    if (tossing.has_ended || path.rows[path.depth] != row) {
        return;
    }
    const std::int64_t child = child_under(tree, row, probas, coins.toss[path.depth]);
    if (child == NONE) {
        reject_children(tree, row, probas);
        path.bonus = pick(probas, V, coins.toss[tree_depth + 1], best);
        tossing.has_ended = true;
    } else if (path.depth >= tree_depth) {
        path.depth = -1;
        tossing.has_ended = true;
    } else {
        ++path.depth;
        path.rows[path.depth] = child;
    }
}

}  // namespace aerie
