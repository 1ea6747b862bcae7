//! The contract for readers: JSON for `GET /v1/contract`, made from the tables.
