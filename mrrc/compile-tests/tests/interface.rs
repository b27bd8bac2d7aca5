//! Refusals of the compiler to a user of the cache, and its permissions.

#[test]
fn misuse_does_not_compile() {
    let tests = trybuild::TestCases::new();
    tests.compile_fail("tests/interface/refused_*.rs");
    tests.pass("tests/interface/granted_*.rs");
}
