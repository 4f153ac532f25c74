"""Axes and bounds that several cards share."""

from __future__ import annotations

from aerie.kernels.card import Axis

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
MAX_BATCH = 128
MAX_VERIFY = 128
MAX_CANDIDATES = 100
MAX_ROWS = MAX_BATCH * MAX_VERIFY
MASK_WORDS = 4  # of 32 bits: a bit for every row of a request
KNOTS = 17  # of a calibration, evenly spaced in the square root of the score

BATCH = Axis("B", 0, MAX_BATCH, "active requests")
WIDTH = Axis("W", 1, 10, "width of the current frontier")
TOP_K = Axis("K", 1, 10, "children per frontier node (node_top_k)")
HIDDEN_SIZE = Axis("H", 0, 8192, "hidden size")
NODES = Axis("N", 1, 4096, "node capacity per request")
VERIFY = Axis("M", 1, MAX_VERIFY, "capacity of sort_scores")
FED = Axis("F", 1, 1024, "columns of the draft's tree mask (MAX_Input_Size + 1)")
ROWS = Axis("R", 0, MAX_ROWS, "row capacity of the ragged layout, all requests together")
VOCAB = Axis("V", 1, 1 << 18, "target vocabulary")
DRAFT_VOCAB = Axis("VD", 1, 1 << 18, "draft vocabulary")
TABLE_ROWS = Axis("P", 0, 1 << 16, "rows of the request-to-slot table")
TABLE_WIDTH = Axis("L", 0, 1 << 21, "columns of the request-to-slot table: longest sequence")
STOPS = Axis("S", 0, 64, "stop token ids per request")
DEPTH = Axis("D", 0, 127, "depth limit of the tree")
COLUMNS = Axis("C", 1, 1 << 30, "KV columns, all requests together")
# Rounds have a row of the table for empty seats, so that every index points at something.
SEATED_ROWS = Axis("P", 1, 1 << 16, "rows of the request-to-slot table")
SEATED_WIDTH = Axis("L", 1, 1 << 21, "columns of the request-to-slot table: longest sequence")
