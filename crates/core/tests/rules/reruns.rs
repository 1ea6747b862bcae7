//! reruns
