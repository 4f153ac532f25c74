// Memory moves as data: a kernel lists them, an engine beside it carries them out.
#pragma once

#include "config.hpp"
#include "numeric.hpp"
#include "ports.hpp"

namespace aerie {

// Copy the first bytes of an input buffer to the front of a static one, or fill the bytes behind
// them with a repeated pattern. Buffers are numbers: the engine knows their addresses.
struct Descriptor {
    std::int32_t buffer;
    std::int32_t is_fill;
    std::int64_t offset;
    std::int64_t bytes;
    std::uint64_t pattern;  // little-endian, `period` bytes long
    std::int32_t period;
};

// A list of moves in order of execution; a kernel lists at most two for each buffer.
struct Moves {
    Descriptor list[Config::MAX_MOVES];
    std::int32_t count;
};

// A static buffer of `size` elements of `width` bytes: n real ones, then the filler.
inline void list_padded(Moves& moves, std::int32_t buffer, std::int32_t width, std::int64_t n,
                        std::int64_t size, std::int64_t filler) {
    const std::uint64_t pattern = static_cast<std::uint64_t>(filler);
    moves.list[moves.count] = Descriptor{buffer, 0, 0, n * width, 0, width};
    moves.list[moves.count + 1] =
        Descriptor{buffer, 1, n * width, (size - n) * width, pattern, width};
    moves.count += 2;
}

#ifndef __SYNTHESIS__
// The software engine of C-simulation: what a card's DMA does with the list, byte by byte.
template <std::int32_t BUFFERS>
inline void run_moves(const Moves& moves, const In<std::uint8_t> (&sources)[BUFFERS],
                      const Out<std::uint8_t> (&targets)[BUFFERS]) {
run_list:
    for (std::int32_t i = 0; i < Config::MAX_MOVES; ++i) {
        if (i >= moves.count) {
            break;
        }
        const Descriptor move = moves.list[i];
        const In<std::uint8_t> source = sources[move.buffer];
        const Out<std::uint8_t> target = targets[move.buffer] + move.offset;
    move_byte:
        for (std::int64_t k = 0; k < Config::MAX_MOVE_BYTES; ++k) {
            if (k >= move.bytes) {
                break;
            }
            const std::uint64_t filler = move.pattern >> (8 * (k % move.period));
            if (move.is_fill != 0) {
                target[k] = static_cast<std::uint8_t>(filler);
            } else {
                target[k] = source[k];
            }
        }
    }
}
#endif

}  // namespace aerie
