//! A program that says it could go on as the guard, and then cannot: what the guard's own program does about that is tested.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

fn main() {
    if let Some(taken) = putexd::guard::taken().expect("what is handed over can be read") {
        panic!("{}", taken.give_back("an impostor guards nothing"));
    }
    let socket = std::env::args_os().nth(1).expect("the guard's socket");
    let mut guard = UnixStream::connect(socket).expect("the guard listens");
    guard.read_exact(&mut [0]).expect("the guard shows what it would hand over");
    guard.write_all(b"ready\n").expect("the guard listens");
    print!("{}", std::io::read_to_string(guard).expect("the guard answers"));
}
