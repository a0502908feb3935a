//! The `sekisho` program: arguments, then one of the commands.

use std::process::ExitCode;

use clap::Parser;
use sekisho::cli::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::parse().run()
}
