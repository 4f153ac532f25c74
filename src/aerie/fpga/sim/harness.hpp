// A host and a memory around one verilated card: registers are written, the card is started, every
// AXI port is answered from one array of bytes, and the counters are read back.
//
// Compiled once a card; PORTS lists its AXI prefixes. The memory may pause any channel, by a
// generator that the seed fixes.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>

#include "verilated.h"

namespace harness {

struct Pauses {
    double read;
    double write;
    std::int32_t latency;
    std::uint64_t seed;
};

// xorshift64*: enough for pauses.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed * 2685821657736338717ULL + 1) {}

    bool is_below(double rate) {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        const double draw = static_cast<double>((state_ * 2685821657736338717ULL) >> 11);
        return draw * (1.0 / 9007199254740992.0) < rate;
    }

  private:
    std::uint64_t state_;
};

struct ReadBeat {
    std::int64_t due;
    std::uint64_t address;
    bool is_last;
};

struct WriteJob {
    std::uint64_t address;
    int beats;
};

// One AXI4 slave over the memory. `Port` is a view of the top's signals of one prefix.
template <typename Port>
class Slave {
  public:
    Slave(Port port, std::uint8_t* memory, const Pauses& pauses, std::uint64_t salt)
        : port_(port), memory_(memory), pauses_(pauses), random_(pauses.seed + salt) {}

    // Before a rising edge: what the card sees in this cycle.
    void drive(std::int64_t cycle) {
        *port_.arready = !random_.is_below(pauses_.read);
        *port_.awready = !random_.is_below(pauses_.write);
        *port_.wready = !jobs_.empty() && !random_.is_below(pauses_.write);
        const bool is_due = !reads_.empty() && reads_.front().due <= cycle;
        *port_.rvalid = is_due && !random_.is_below(pauses_.read);
        *port_.bvalid = answers_ > 0;
        if (*port_.rvalid) {
            std::memcpy(port_.rdata, memory_ + reads_.front().address, Port::BYTES);
            *port_.rlast = reads_.front().is_last;
        }
    }

    // At the edge, with the card's outputs as they were before it.
    void take(std::int64_t cycle) {
        if (*port_.rvalid && *port_.rready) {
            reads_.pop_front();
        }
        if (*port_.bvalid && *port_.bready) {
            --answers_;
        }
        if (*port_.arvalid && *port_.arready) {
            for (int beat = 0; beat <= *port_.arlen; ++beat) {
                reads_.push_back(ReadBeat{cycle + pauses_.latency,
                                          *port_.araddr + static_cast<std::uint64_t>(beat) *
                                                              Port::BYTES,
                                          beat == *port_.arlen});
            }
        }
        if (*port_.wvalid && *port_.wready) {
            store();
        }
        if (*port_.awvalid && *port_.awready) {
            jobs_.push_back(WriteJob{*port_.awaddr, *port_.awlen + 1});
        }
    }

  private:
    void store() {
        WriteJob& job = jobs_.front();
        const std::uint8_t* data = reinterpret_cast<const std::uint8_t*>(port_.wdata);
        for (std::uint64_t lane = 0; lane < Port::BYTES; ++lane) {
            if ((static_cast<std::uint64_t>(*port_.wstrb) >> lane) & 1U) {
                memory_[job.address + lane] = data[lane];
            }
        }
        job.address += Port::BYTES;
        if (--job.beats == 0) {
            jobs_.pop_front();
            ++answers_;
        }
    }

    Port port_;
    std::uint8_t* memory_;
    Pauses pauses_;
    Random random_;
    std::deque<ReadBeat> reads_;
    std::deque<WriteJob> jobs_;
    int answers_ = 0;
};

}  // namespace harness
