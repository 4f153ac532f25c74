// Memory outside the chip. A kernel reaches it through ports only, and C-simulation counts the
// bytes that cross each of them; for synthesis a port is a pointer.
#pragma once

#include <cstdint>

namespace aerie {

// Bytes that crossed one port since its kernel was called.
struct Meter {
    std::int64_t read;
    std::int64_t written;
};

#ifdef __SYNTHESIS__
inline void begin_call(Meter* /*meters*/, std::int32_t /*n*/) {}

template <typename Element>
using In = const Element*;
template <typename Element>
using Out = Element*;

template <typename Element>
inline Element* metered(Element* data, Meter& /*meter*/) {
    return data;
}

template <typename Element>
inline const Element* as_input(Element* data) {
    return data;
}
#else
constexpr std::int32_t MAX_PORTS = 64;

// The counters of the call that is running, or ran last.
inline Meter*& latest_call() {
    static Meter* latest = nullptr;
    return latest;
}

inline void begin_call(Meter* meters, std::int32_t n) {
    latest_call() = meters;
reset_meter:
    for (std::int32_t i = 0; i < MAX_PORTS; ++i) {
        if (i >= n) {
            break;
        }
        meters[i] = Meter{0, 0};
    }
}

// Read only. Every access counts, so a kernel that looks twice is charged twice.
template <typename Element>
class In {
  public:
    In(const Element* data, Meter* meter) : data_(data), meter_(meter) {}

    Element operator[](std::int64_t i) const {
        meter_->read += static_cast<std::int64_t>(sizeof(Element));
        return data_[i];
    }

    In operator+(std::int64_t n) const { return In(data_ + n, meter_); }

    // The same memory as bytes, for a mover that does not care what they mean.
    In<std::uint8_t> bytes() const {
        return In<std::uint8_t>(reinterpret_cast<const std::uint8_t*>(data_), meter_);
    }

  private:
    const Element* data_;
    Meter* meter_;
};

// One entry of a port that may be read and written.
template <typename Element>
class Cell {
  public:
    Cell(Element* place, Meter* meter) : place_(place), meter_(meter) {}

    operator Element() const {
        meter_->read += static_cast<std::int64_t>(sizeof(Element));
        return *place_;
    }

    void operator=(Element value) const {
        meter_->written += static_cast<std::int64_t>(sizeof(Element));
        *place_ = value;
    }

  private:
    Element* place_;
    Meter* meter_;
};

// Written, and where a kernel updates in place also read.
template <typename Element>
class Out {
  public:
    Out(Element* data, Meter* meter) : data_(data), meter_(meter) {}

    Cell<Element> operator[](std::int64_t i) const { return Cell<Element>(data_ + i, meter_); }

    Out operator+(std::int64_t n) const { return Out(data_ + n, meter_); }

    In<Element> input() const { return In<Element>(data_, meter_); }

    Out<std::uint8_t> bytes() const {
        return Out<std::uint8_t>(reinterpret_cast<std::uint8_t*>(data_), meter_);
    }

  private:
    Element* data_;
    Meter* meter_;
};

// An array that is written elsewhere, to be read here; on the same meter.
template <typename Element>
inline In<Element> as_input(const Out<Element>& port) {
    return port.input();
}

template <typename Element>
inline In<Element> metered(const Element* data, Meter& meter) {
    return In<Element>(data, &meter);
}

template <typename Element>
inline Out<Element> metered(Element* data, Meter& meter) {
    return Out<Element>(data, &meter);
}
#endif

// The first n entries of a port into a buffer on chip: one burst.
template <typename Port, typename Element, std::int32_t CAPACITY>
inline void load(const Port& port, std::int32_t n, Element (&buffer)[CAPACITY]) {
load_entry:
    for (std::int32_t i = 0; i < CAPACITY; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        buffer[i] = port[i];
    }
}

// The first n entries of a buffer out through a port: one burst.
template <typename Port, typename Element, std::int32_t CAPACITY>
inline void store(const Element (&buffer)[CAPACITY], std::int32_t n, const Port& port) {
store_entry:
    for (std::int32_t i = 0; i < CAPACITY; ++i) {
#pragma HLS PIPELINE II=1
        if (i >= n) {
            break;
        }
        port[i] = buffer[i];
    }
}

}  // namespace aerie
