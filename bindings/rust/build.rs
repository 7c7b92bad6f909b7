//! Remembers the folder EKIDEN_LIB_DIR, where programs look for `libekiden_runtime.so` when that names
//! none: `python -c "import ekiden.runtime as r; print(r.library_path())"` says it.

use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=EKIDEN_LIB_DIR");
    if let Ok(folder) = env::var("EKIDEN_LIB_DIR") {
        println!("cargo:rustc-env=EKIDEN_BUILT_WITH={folder}");
    }
}
