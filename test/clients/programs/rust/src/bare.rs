// A Rust program that opens the driver with dlopen and nothing between. Takes memory in blocks until it is refused,
// prints one JSON object, then waits for the end of its input. Knows nothing of Cotenant.
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::io::{stdin, Read};
use std::mem::transmute_copy;

const BLOCK: usize = 64 << 20;
const RTLD_NOW: c_int = 2;

extern "C" {
    fn dlopen(path: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `F` is the type of the entry point of that name.
unsafe fn entry<F>(library: *mut c_void, name: &CStr) -> F {
    let found = dlsym(library, name.as_ptr());
    assert!(!found.is_null(), "{name:?} is not there");
    transmute_copy(&found)
}

fn must(result: c_int, what: &str) {
    assert!(result == 0, "{what}: {result}");
}

fn main() {
    unsafe {
        let library = dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW);
        assert!(!library.is_null(), "libcuda.so.1 cannot be opened");
        let start: unsafe extern "C" fn(c_uint) -> c_int = entry(library, c"cuInit");
        let device: unsafe extern "C" fn(*mut c_int, c_int) -> c_int = entry(library, c"cuDeviceGet");
        let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int = entry(library, c"cuDevicePrimaryCtxRetain");
        let enter: unsafe extern "C" fn(*mut c_void) -> c_int = entry(library, c"cuCtxSetCurrent");
        let info: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int = entry(library, c"cuMemGetInfo_v2");
        let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int = entry(library, c"cuMemAlloc_v2");
        let release: unsafe extern "C" fn(u64) -> c_int = entry(library, c"cuMemFree_v2");

        let (mut gpu, mut context) = (0, std::ptr::null_mut());
        must(start(0), "cuInit");
        must(device(&mut gpu, 0), "cuDeviceGet");
        must(retain(&mut context, gpu), "cuDevicePrimaryCtxRetain");
        must(enter(context), "cuCtxSetCurrent");
        let (mut free, mut total, mut full) = (0, 0, 0);
        must(info(&mut free, &mut total), "cuMemGetInfo");
        let mut addresses = Vec::new();
        let refusal = loop {
            let mut address = 0;
            match allocate(&mut address, BLOCK) {
                0 => addresses.push(address),
                refusal => break refusal,
            }
        };
        must(info(&mut full, &mut total), "cuMemGetInfo");
        must(release(addresses[0]), "cuMemFree");
        let again = allocate(&mut addresses[0], BLOCK);
        println!(
            r#"{{"total":{total},"free":{free},"idle":{free},"full":{full},"blocks":{},"refusal":{refusal},"again":{again}}}"#,
            addresses.len()
        );
    }
    stdin().read_to_end(&mut Vec::new()).expect("input");
}
