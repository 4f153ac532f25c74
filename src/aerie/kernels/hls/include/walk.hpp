// The two acceptance rules of K6 on one request's tree.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ragged.hpp"

namespace aerie {

// A link to nobody. Once links are checked, every other one is a row.
constexpr std::int64_t NONE = -1;

// One request's rows: tokens and links, row 0 the root.
struct Tree {
    const std::int64_t* tokens;
    const std::int64_t* first_child;
    const std::int64_t* next_sibling;
    std::int32_t count;
};

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
inline std::int64_t child_under(const Tree& tree, std::int64_t row, const float* probas,
                                double coin) {
    std::int64_t child = tree.first_child[row];
    std::int64_t found = NONE;
    double running = 0.0;
toss_child:
    for (std::int32_t step = 0; step < Config::MAX_VERIFY; ++step) {
        if (child == NONE || found != NONE) {
            break;
        }
        running += static_cast<double>(probas[tree.tokens[child]]);
        found = coin < running ? child : NONE;
        child = tree.next_sibling[child];
    }
    return found;
}

// Tokens of a node's children: what the bonus token may not be.
struct Rejected {
    std::int64_t tokens[Config::MAX_VERIFY];
    std::int32_t count;
};

inline void list_children(const Tree& tree, std::int64_t row, Rejected& rejected) {
    std::int64_t child = tree.first_child[row];
    rejected.count = 0;
list_child:
    for (std::int32_t step = 0; step < Config::MAX_VERIFY; ++step) {
        if (child == NONE) {
            break;
        }
        rejected.tokens[rejected.count] = tree.tokens[child];
        ++rejected.count;
        child = tree.next_sibling[child];
    }
}

inline bool is_rejected(const Rejected& rejected, std::int64_t token) {
    bool found = false;
match_rejected:
    for (std::int32_t i = 0; i < Config::MAX_VERIFY; ++i) {
#pragma HLS UNROLL
        if (i >= rejected.count) {
            break;
        }
        found = found || rejected.tokens[i] == token;
    }
    return found;
}

// The token a coin picks from what the rejected children leave, or the argmax if that is nothing.
inline std::int64_t bonus_of(const float* probas, std::int32_t V, const Rejected& rejected,
                             double coin) {
    double total = 0.0;
    std::int32_t best = 0;
sum_left:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE
        if (v >= V) {
            break;
        }
        total += is_rejected(rejected, v) ? 0.0 : static_cast<double>(probas[v]);
        best = probas[v] > probas[best] ? v : best;
    }
    if (total == 0.0) {
        return best;
    }
    const double threshold = coin * total;
    double running = 0.0;
    std::int64_t found = -1;
find_bonus:
    for (std::int32_t v = 0; v < Config::MAX_VOCAB; ++v) {
#pragma HLS PIPELINE
        if (v >= V || found >= 0) {
            break;
        }
        running += is_rejected(rejected, v) ? 0.0 : static_cast<double>(probas[v]);
        found = running > threshold ? v : -1;
    }
    return found;
}

// Follow the target's own tokens.
inline void walk_matching(const Tree& tree, const std::int64_t* target_tokens,
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

// Accept a child where the coin of its depth falls; the last coin picks the bonus token.
inline void walk_tossing(const Tree& tree, const float* target_probas, std::int32_t V,
                         const float* coins, std::int32_t tree_depth, Path& path) {
    Rejected rejected = {};
    path.depth = 0;
    path.rows[0] = 0;
toss_step:
    for (std::int32_t step = 0; step < Config::MAX_RUN; ++step) {
        const std::int64_t row = path.rows[path.depth];
        const float* probas = target_probas + place(row, V, 0);
        const double coin = static_cast<double>(coins[path.depth]);
        const std::int64_t child = child_under(tree, row, probas, coin);
        if (child == NONE) {
            list_children(tree, row, rejected);
            path.bonus = bonus_of(probas, V, rejected, static_cast<double>(coins[tree_depth + 1]));
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

}  // namespace aerie
