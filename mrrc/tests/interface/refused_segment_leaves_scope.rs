use mrrc::Cache;
use mrrc::registrar::model::Dummy;

fn main() {
    let cache = Cache::builder(Dummy::default()).build().unwrap();
    let segment = cache.with_slice(&[1, 2, 3], |lease| lease.segments().next().unwrap()).unwrap();
    println!("{:?}", segment.registration());
}
