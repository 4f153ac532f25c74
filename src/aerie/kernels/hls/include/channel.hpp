// Channels between the processes of a dataflow region: one producer, one consumer, in order.
#pragma once

#include <cstdint>

#ifdef __SYNTHESIS__
#include <hls_stream.h>
#endif

namespace aerie {

#ifdef __SYNTHESIS__
template <typename Item, std::int32_t DEPTH>
using Channel = hls::stream<Item, DEPTH>;
#else
// C-simulation runs one process after the other, so a channel holds all that a process writes;
// DEPTH is that number. A region whose depths are too small, or that reads what nobody wrote, is
// wrong and says so by writing past or reading behind its items.
template <typename Item, std::int32_t DEPTH>
class Channel {
  public:
    void write(const Item& item) {
        is_sound_ = is_sound_ && written_ - taken_ < DEPTH;
        items_[written_ % DEPTH] = item;
        ++written_;
    }

    Item read() {
        is_sound_ = is_sound_ && taken_ < written_;
        const Item item = items_[taken_ % DEPTH];
        ++taken_;
        return item;
    }

    // Whether nothing was lost, invented or left behind.
    bool is_drained() const { return is_sound_ && taken_ == written_; }

  private:
    Item items_[DEPTH] = {};
    std::int32_t written_ = 0;
    std::int32_t taken_ = 0;
    bool is_sound_ = true;
};
#endif

}  // namespace aerie
