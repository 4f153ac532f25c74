"""K7 as a card: clip the accepted runs, compact the batch, scatter its lists."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed

from aerie.fpga.rtl.card import DOUBLE, SINGLE, counted_loop
from aerie.fpga.rtl.checks import (
    BROKEN_LAYOUT,
    BROKEN_TREE,
    MAX_VERIFY,
    ROW_CAPACITY,
    TOO_DEEP,
    table_refusal,
)
from aerie.fpga.rtl.commit_lists import CommitLists


class VerifyResult(CommitLists):
    """Tokens, kept rows, finished and unfinished requests, KV moves, freed slots."""

    ARGUMENTS = ("B", "D", "R", "S", "P", "L")
    PORTS = (
        "accept_index", "accept_count", "bonus_token", "draft_tokens", "qo_indptr", "seq_len",
        "length_limit", "stop_tokens", "req_to_token", "req_pool_indices", "out_tokens",
        "out_indptr", "out_rows", "rows_indptr", "new_seq_len", "finished", "unfinished",
        "unfinished_count", "kv_src", "kv_dst", "move_count", "free", "free_count", "status",
    )  # fmt: skip

    def body(self, m: Module) -> None:
        """Request after request, then what no request needed of the lists."""
        self._signals(m)
        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += [head.eq(0) for head in self.heads.values()]
                m.d.sync += [self.request.eq(0), self.highest.eq(-(1 << 31))]
                m.next = "ASK_FIRST"
            with m.State("ASK_FIRST"):
                with m.If(self.reads(m, "qo_indptr", Const(0), Const(1), SINGLE)):
                    m.next = "TAKE_FIRST"
            with m.State("TAKE_FIRST"):
                is_there, value = self.takes(m)
                with m.If(is_there):
                    m.d.sync += self.first.eq(value[0:32].as_signed())
                    m.next = "OPEN_TOKENS"
            self._one(m, "OPEN_TOKENS", "out_indptr", Const(0), Const(0), SINGLE, "OPEN_ROWS")
            self._one(m, "OPEN_ROWS", "rows_indptr", Const(0), Const(0), SINGLE, "REQUEST")
            self._ask(m)
            self._judge(m)
            self._tokens(m)
            self._lists(m)
            self._close(m)
            self._finish(m)

    def _ask(self, m: Module) -> None:
        """Scalars and the path of a request, asked for together."""
        run = self.argument("D") + 1
        asked: tuple[tuple[str, str, Value, Value, int], ...] = (
            ("REQUEST", "qo_indptr", self.request + 1, Const(1), SINGLE),
            ("ASK_LENGTH", "seq_len", self.request, Const(1), DOUBLE),
            ("ASK_POOL", "req_pool_indices", self.request, Const(1), DOUBLE),
            ("ASK_COUNT", "accept_count", self.request, Const(1), DOUBLE),
            ("ASK_PATH", "accept_index", (self.request * run)[0:24], run, DOUBLE),
        )
        names = [entry[0] for entry in asked] + ["TAKE_END"]
        for place, (name, port, index, count, size) in enumerate(asked):
            with m.State(name):
                if name == "REQUEST":
                    with m.If(self.request == self.argument("B")):
                        m.next = "FILL_TOKENS"
                    with m.Else(), m.If(self.reads(m, port, index, count, size)):
                        m.next = names[place + 1]
                else:
                    with m.If(self.reads(m, port, index, count, size)):
                        m.next = names[place + 1]
        with m.State("TAKE_END"):
            is_there, value = self.takes(m)
            end = value[0:32].as_signed()
            is_falling = (
                (self.first < 0)
                | (self.first > end)
                | (end > self.argument("R")[0:32])
                | (self.first < self.highest)
            )
            rows = (end - self.first)[0:33]
            with m.If(is_there):
                m.d.sync += [self.n_rows.eq(rows[0:8]), self.refusal.eq(0)]
                with m.If(is_falling):
                    m.d.sync += [self.refusal.eq(BROKEN_LAYOUT), self.n_rows.eq(0)]
                with m.Elif(rows > MAX_VERIFY):
                    m.d.sync += [self.refusal.eq(ROW_CAPACITY), self.n_rows.eq(0)]
                with m.If(self.first > self.highest):
                    m.d.sync += self.highest.eq(self.first)
                m.d.sync += [self.row.eq(self.first), self.first.eq(end), self.is_last.eq(0)]
                m.next = "TAKE_prefix"
        for name, after in (("prefix", "pool"), ("pool", "accepted")):
            self._take_scalar(m, name, f"TAKE_{after}")
        self._take_scalar(m, "accepted", "TAKE_PATH")

    def _take_scalar(self, m: Module, name: str, after: str) -> None:
        with m.State(f"TAKE_{name}"):
            is_there, value = self.takes(m)
            with m.If(is_there):
                m.d.sync += self.scalars[name].eq(value)
                m.next = after

    def _judge(self, m: Module) -> None:
        """The path must ascend from row 0 within the request; then the table's refusals."""
        accepted = self.scalars["accepted"]
        is_deep = (accepted < 0) | (accepted > self.argument("D")[0:32])
        ascends, before, last = Signal(), Signal(signed(64)), Signal(signed(64))
        with m.State("TAKE_PATH"):
            is_there, value = self.takes(m)
            row = value.as_signed()
            m.d.comb += [
                self.path_in.addr.eq(self.place),
                self.path_in.data.eq(value),
                self.path_in.en.eq(is_there),
            ]
            with m.If(is_there):
                m.d.sync += before.eq(row)
                with m.If(self.place == 0):
                    m.d.sync += ascends.eq(row == 0)
                with m.Elif(self.place <= accepted):
                    m.d.sync += ascends.eq(ascends & (before < row))
                with m.If(self.place == accepted):
                    m.d.sync += last.eq(row)
            with m.If(counted_loop(m, self.place, is_there, self.argument("D") + 1)):
                m.next = "JUDGE"
        with m.State("JUDGE"):
            found = table_refusal(self, self.scalars["pool"], self.scalars["prefix"], self.n_rows)
            is_broken = (self.n_rows != 0) & (~ascends | (last >= self.n_rows))
            with m.If(self.refusal == 0):
                with m.If(is_deep):
                    m.d.sync += self.refusal.eq(TOO_DEEP)
                with m.Elif(is_broken):
                    m.d.sync += self.refusal.eq(BROKEN_TREE)
                with m.Else():
                    m.d.sync += self.refusal.eq(found)
            m.d.sync += self.length.eq(self.scalars["prefix"])
            m.next = "STATUS"
        self._one(m, "STATUS", "status", self.request, self.refusal, SINGLE, "BRANCH")
        with m.State("BRANCH"):
            m.next = "ASK_STOPS"
            with m.If((self.refusal != 0) | (self.n_rows == 0)):
                m.next = "CLOSE_LENGTH"

    def _tokens(self, m: Module) -> None:
        """Accepted tokens then the bonus, cut after a stop token or when the room is used up."""
        stops = self.argument("S")
        pool, prefix = self.scalars["pool"], self.scalars["prefix"]
        table = (pool[0:24] * self.argument("L")[0:24] + prefix[0:32])[0:40]
        chain: tuple[tuple[str, str, Value, Value, int, str], ...] = (
            ("ASK_STOPS", "stop_tokens", (self.request * stops)[0:24], stops, DOUBLE, "ASK_SLOTS"),
            ("ASK_SLOTS", "req_to_token", table, self.n_rows, SINGLE, "ASK_LIMIT"),
            ("ASK_LIMIT", "length_limit", self.request, Const(1), DOUBLE, "ASK_BONUS"),
            ("ASK_BONUS", "bonus_token", self.request, Const(1), DOUBLE, "STOPS"),
        )
        for name, port, index, count, size, after in chain:
            with m.State(name), m.If(self.reads(m, port, index, count, size)):
                m.next = after
        with m.State("STOPS"):
            m.next = "TAKE_SLOTS"
            with m.If(stops != 0):
                self._store(m, self.stops_in, stops, "TAKE_SLOTS", "STOPS")
        with m.State("TAKE_SLOTS"):
            self._store(m, self.slots_in, self.n_rows, "TAKE_limit", "TAKE_SLOTS")
        self._take_scalar(m, "limit", "TAKE_bonus")
        self._take_scalar(m, "bonus", "ROOM")
        self._run(m, stops, prefix)

    def _run(self, m: Module, stops: Value, prefix: Value) -> None:
        """Token by token: read, held against the stop ids, counted; then what KV is kept."""
        token, at = Signal(64), Signal(7)
        is_stop = Signal()
        with m.State("ROOM"):
            # seq_len + 1 tokens are committed already; a limit may be any number.
            low = Mux(self.scalars["limit"] < -1, Const(-1, signed(64)), self.scalars["limit"])
            most = Mux(low > (1 << 40), 1 << 40, low)
            m.d.sync += [self.room.eq(most - prefix - 1), self.emitted.eq(0), is_stop.eq(0)]
            m.next = "TOKEN"
        with m.State("TOKEN"):
            is_over = (self.emitted > self.scalars["accepted"]) | (self.emitted >= self.room)
            is_bonus = self.emitted == self.scalars["accepted"]
            m.d.comb += self.path_out.addr.eq(self.emitted + 1)
            with m.If(is_over | is_stop):
                m.d.sync += self.is_last.eq(is_stop | (self.emitted >= self.room))
                m.next = "KEEP"
            with m.Elif(is_bonus):
                m.d.sync += token.eq(self.scalars["bonus"])
                m.next = "MATCH"
            with m.Else():
                row = (self.row + self.path_out.data)[0:32]
                with m.If(self.reads(m, "draft_tokens", row, Const(1), DOUBLE)):
                    m.next = "TAKE_TOKEN"
        with m.State("TAKE_TOKEN"):
            is_there, value = self.takes(m)
            with m.If(is_there):
                m.d.sync += token.eq(value)
                m.next = "MATCH"
        with m.State("MATCH"):
            # One stop id a cycle; -1 stops nothing.
            m.d.comb += [
                self.run_in.addr.eq(self.emitted),
                self.run_in.data.eq(token),
                self.run_in.en.eq(1),
                self.stops_out.addr.eq(at),
            ]
            hits = (at < stops) & (self.stops_out.data == token) & ~token[63]
            with m.If(hits):
                m.d.sync += is_stop.eq(1)
            m.d.sync += at.eq(at + 1)
            with m.If(at + 1 >= stops):
                m.d.sync += [at.eq(0), self.emitted.eq(self.emitted + 1)]
                m.next = "TOKEN"
        with m.State("KEEP"):
            least = Mux(
                self.emitted < self.scalars["accepted"], self.emitted, self.scalars["accepted"]
            )
            # The bonus has no KV yet; the root always has.
            m.d.sync += [self.kept.eq(1 + least), self.length.eq(prefix + 1 + least)]
            m.next = "GIVE_TOKENS"

    def _store(self, m: Module, port: object, count: Value, after: str, here: str) -> None:
        is_there, value = self.takes(m)
        m.d.comb += [
            port.addr.eq(self.place),  # type: ignore[attr-defined]
            port.data.eq(value),  # type: ignore[attr-defined]
            port.en.eq(is_there),  # type: ignore[attr-defined]
        ]
        m.next = here
        with m.If(counted_loop(m, self.place, is_there, count)):
            m.next = after
