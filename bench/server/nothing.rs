//! Only a benchmark is here.
