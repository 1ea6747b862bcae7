//! coded
