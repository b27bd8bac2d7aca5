use mrrc::registrar::model::Dummy;
use mrrc::{Cache, Lease};

fn main() {
    let cache = Cache::builder(Dummy::default()).build().unwrap();
    let mut kept: Option<&Lease<Dummy>> = None;
    cache.with_slice(&[1, 2, 3], |lease| kept = Some(lease)).unwrap();
    println!("{kept:?}");
}
