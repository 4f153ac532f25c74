"""Whether speculation changes a text: certificates of models, and of servers over HTTP."""
