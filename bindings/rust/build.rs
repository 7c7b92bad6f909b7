//! Links with `libekiden_runtime.so` of the folder EKIDEN_LIB_DIR, which is where
//! `python -c "import ekiden.runtime as r; print(r.library_path())"` says it is.

use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=EKIDEN_LIB_DIR");
    println!("cargo:rustc-link-lib=dylib=ekiden_runtime");
    if let Ok(folder) = env::var("EKIDEN_LIB_DIR") {
        println!("cargo:rustc-link-search=native={folder}");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
