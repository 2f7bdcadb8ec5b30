//! Tests of authentication as a whole.
