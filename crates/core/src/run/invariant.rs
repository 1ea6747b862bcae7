//! What holds for every run.
