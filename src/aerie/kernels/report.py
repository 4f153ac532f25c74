"""The report of a round: what the host reads of every request, as columns by name.

A row holds these integers, then the tokens that the request emitted. Python and the kernels that
write it take the columns from here.
"""

from __future__ import annotations

REPORT = ("n_emitted", "is_finished", "status", "n_rows", "n_accepted", "seq_len", "n_chosen")

N_EMITTED, IS_FINISHED, STATUS, N_ROWS, N_ACCEPTED, SEQ_LEN, N_CHOSEN = range(len(REPORT))
