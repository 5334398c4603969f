// A Rust program of the cudarc crate, which opens the driver by itself and takes memory in the order of a stream. Fills
// memory in blocks until it is refused, prints one JSON object, then waits for the end of its input. Knows nothing of
// Cotenant.
use cudarc::driver::{result::mem_get_info, sys::CUresult, CudaContext, DriverError};
use std::io::{stdin, Read};

const BLOCK: usize = 64 << 20;

fn main() -> Result<(), DriverError> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let (free, total) = mem_get_info()?;

    let data: Vec<u32> = (0..1 << 18).map(|value| value ^ 0x5a5a).collect();
    let copy = stream.memcpy_stod(&data)?;
    assert!(stream.memcpy_dtov(&copy)? == data, "what was copied comes back");
    drop(copy);
    context.synchronize()?;
    let (idle, _) = mem_get_info()?;

    let mut blocks = Vec::new();
    let refusal = loop {
        match unsafe { stream.alloc::<u8>(BLOCK) } {
            Ok(block) => blocks.push(block),
            Err(DriverError(result)) => break result,
        }
    };
    let (full, _) = mem_get_info()?;
    let held = blocks.len();
    blocks.pop();
    context.synchronize()?;
    let again = match unsafe { stream.alloc::<u8>(BLOCK) } {
        Ok(block) => {
            blocks.push(block);
            CUresult::CUDA_SUCCESS
        }
        Err(DriverError(result)) => result,
    };
    println!(
        r#"{{"total":{total},"free":{free},"idle":{idle},"full":{full},"blocks":{held},"refusal":{},"again":{}}}"#,
        refusal as u32, again as u32
    );
    stdin().read_to_end(&mut Vec::new()).expect("input");
    Ok(())
}
