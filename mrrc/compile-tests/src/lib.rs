//! Tests of what the compiler refuses and permits to users of `mrrc`: see `tests/interface`. The library is empty.
