// Generated from the cards: python -m aerie.kernels.hls.generate

// Bounds and status words: every trip count and buffer is made of these.
#pragma once

#include <cstdint>

namespace aerie {

struct Config {
    // active requests
    static constexpr std::int32_t MAX_BATCH = 128;
    // width of the current frontier
    static constexpr std::int32_t MAX_WIDTH = 10;
    // children per frontier node (node_top_k)
    static constexpr std::int32_t MAX_TOP_K = 10;
    // frontier slots, or siblings
    static constexpr std::int32_t MAX_CHOICES = 10;
    // candidates of one layer, W*K
    static constexpr std::int32_t MAX_CANDIDATES = 64;
    // 16-bit words of a hidden row
    static constexpr std::int32_t MAX_HIDDEN_WORDS = 8192;
    // node capacity per request
    static constexpr std::int32_t MAX_NODES = 4096;
    // nodes of a request that a fused region keeps on chip
    static constexpr std::int32_t FUSED_NODES = 1024;
    // levels of a fused draft
    static constexpr std::int32_t MAX_LEVELS = 32;
    // rows of a level, all requests
    static constexpr std::int32_t MAX_DRAFT_ROWS = 256;
    // widest row of a draft head
    static constexpr std::int32_t MAX_DRAFT_WIDTH = 20480;
    // numbers of a weight that share a scale
    static constexpr std::int32_t MAX_GROUP = 128;
    // attention heads
    static constexpr std::int32_t MAX_HEADS = 64;
    // width of a head
    static constexpr std::int32_t MAX_HEAD_DIM = 128;
    // candidates of a row that are scored again
    static constexpr std::int32_t MAX_TOP = 256;
    // bytes of a resident weight
    static constexpr std::int32_t RESIDENT_BYTES = 67108864;
    // rows of one request
    static constexpr std::int32_t MAX_VERIFY = 128;
    // old scores and a layer's
    static constexpr std::int32_t MAX_MERGED = 192;
    // both runs of K3
    static constexpr std::int32_t MAX_WORK = 138;
    // columns of the draft's tree mask (MAX_Input_Size + 1)
    static constexpr std::int32_t MAX_FED = 1024;
    // row capacity of the ragged layout, all requests together
    static constexpr std::int32_t MAX_ROWS = 16384;
    // target vocabulary
    static constexpr std::int32_t MAX_VOCAB = 262144;
    // draft vocabulary
    static constexpr std::int32_t MAX_DRAFT_VOCAB = 262144;
    // places of K1's table of target ids
    static constexpr std::int32_t MAX_HASHES = 524288;
    // rows of an accepted run, root included
    static constexpr std::int32_t MAX_RUN = 128;
    // stop token ids per request
    static constexpr std::int32_t MAX_STOPS = 64;
    // columns of the request-to-slot table: longest sequence
    static constexpr std::int32_t MAX_TABLE_WIDTH = 2097152;
    // bytes of one mask
    static constexpr std::int32_t MAX_MASK_BYTES = 33554432;
    // fresh slots
    static constexpr std::int32_t MAX_POOL = 16777216;
    // entries of the largest buffer
    static constexpr std::int64_t MAX_BUFFER = 4294967296LL;
    // captured sizes, one list
    static constexpr std::int32_t MAX_BUCKETS = 16512;
    // moves of one replay
    static constexpr std::int32_t MAX_MOVES = 16;
    // bytes of one move
    static constexpr std::int64_t MAX_MOVE_BYTES = 4328521728LL;
    // slots of the engine
    static constexpr std::int32_t MAX_SLOTS = 1024;
    // largest offset
    static constexpr std::int32_t INT32_HIGHEST = 2147483647;
    // below every offset
    static constexpr std::int32_t INT32_LOWEST = -2147483647;
};

// Words of `status`, as src/aerie/kernels/status.py has them.
enum class Status : std::int32_t {
    OK = 0,  // done
    OUT_OF_RANGE = 1,  // an index points outside its table
    ROW_CAPACITY = 2,  // more rows than the buffer holds
    KV_CAPACITY = 3,  // more KV slots than the list holds
    MASK_CAPACITY = 4,  // more mask bytes than the buffer holds
    SLOT_CAPACITY = 5,  // more slots asked for than were given
    OVERFLOW = 6,  // a running sum passes int32
    TOO_DEEP = 7,  // a path is deeper than tree_depth
    DUPLICATE_SIBLING = 8,  // two children of one node carry the same token
    NOT_INJECTIVE = 9,  // hot_token_id maps two draft ids to one target id
    NOT_FINITE = 10,  // a target row holds NaN or +inf
    ALL_MASKED = 11,  // every token of a target row is masked
    BROKEN_TREE = 12,  // the nodes are not an ancestor-closed tree with parents first
    BROKEN_LAYOUT = 13,  // the ragged row layout is inconsistent
    BAD_PARAMETER = 14,  // a sampling parameter is impossible
    DUPLICATE_REQUEST = 15,  // two requests of the batch share one table row
    TABLE_ROW = 16,  // a row the slot table does not have
    CANDIDATE = 17,  // a candidate the layer does not have
    NEGATIVE_LENGTH = 18,  // a length below zero
};

}  // namespace aerie
