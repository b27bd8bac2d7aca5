use mrrc::Cache;
use mrrc::registrar::model::Dummy;

fn main() {
    let cache = Cache::builder(Dummy::default()).build().unwrap();
    let changing = cache.changing(4096 as *const u8, 1).unwrap();
    drop(cache);
    drop(changing);
}
