//! Says what files contain: `cargo run --example classify FOLDER FILE ...`, where the folder is what
//! `python examples/python/classify.py prepare FOLDER` writes.

use std::error::Error;
use std::path::Path;

use ekiden::{lend, Input, Model};

/// The first bytes of a file and its last ones, without the white space around it.
fn features(data: &[u8], begin: usize, end: usize, padding: i32) -> Vec<i32> {
    const BLOCK: usize = 4096;
    let size = data.len();
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 11;
    let head = data[..size.min(BLOCK)].iter().skip_while(|byte| is_space(byte)).take(begin);
    let last = &data[size - size.min(BLOCK)..];
    let kept = last.len() - last.iter().rev().take_while(|byte| is_space(byte)).count();
    let tail = &last[kept - kept.min(end)..kept];
    let mut row = vec![padding; begin + end];
    row.iter_mut().zip(head).for_each(|(to, &byte)| *to = i32::from(byte));
    let from = row.len() - tail.len();
    row[from..].iter_mut().zip(tail).for_each(|(to, &byte)| *to = i32::from(byte));
    row
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().ok_or("usage: classify FOLDER FILE ...")?;
    let model = Model::load(Path::new(&folder).join("magika.eki"))?;
    let about = std::fs::read_to_string(Path::new(&folder).join("magika.txt"))?;
    let mut lines = about.lines();
    let sizes: Vec<i32> =
        lines.next().ok_or("sizes expected")?.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let labels: Vec<&str> = lines.collect();
    let input = model.inputs("main")?.remove(0);
    for name in words {
        let row = features(&std::fs::read(&name)?, sizes[0] as usize, sizes[1] as usize, sizes[2]);
        let lent = lend(&row, &[1, row.len() as i64])?;
        let result = model.run("main", &[(&input, Input::Lent(&lent))])?.into_tensors()?;
        let scores = result[0].as_slice::<f32>()?;
        let best = (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or(0);
        println!("{name}: {} {:.1} %", labels[best], 100.0 * scores[best]);
    }
    Ok(())
}
