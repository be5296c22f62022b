"""The ledger: each GPU-second that was held, booked to one cause."""
