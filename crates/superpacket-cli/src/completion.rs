//! Shell completion: one script per shell, which asks the program for the possible next words.
//!
//! The shell runs the program with an environment variable and the words of its command line. So
//! the completed ports and offloads are those of the bridge running at that moment.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::env::{self, CompleteEnv, EnvCompleter, Shells};

use crate::arguments::Arguments;

/// Environment variable in which the script passes the name of its shell.
const VARIABLE: &str = "_SUPERPACKET_COMPLETE";

/// Name of the program.
const PROGRAM: &str = "superpacket";

/// The supported shells.
const SHELLS: Shells<'static> = Shells(&[&Bash, &env::Elvish, &env::Fish, &env::Powershell, &Zsh]);

/// If a completion script started the program, prints the candidates and exits; otherwise returns.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Arguments::command).var(VARIABLE).shells(SHELLS).complete();
}

/// Returns the completion script for the shell with this name.
///
/// # Errors
/// If the shell is not supported; the message lists those that are.
pub(crate) fn script(shell: &str) -> Result<String, String> {
    let names = || SHELLS.names().collect::<Vec<_>>().join(", ");
    let completer = SHELLS
        .completer(shell)
        .ok_or_else(|| format!("no completion script for {shell}; available: {}", names()))?;
    let mut text = Vec::new();
    completer
        .write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut text)
        .map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Bash, with our own script: clap's script completes no word that contains a colon or an equals
/// sign.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        env::Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        env::Bash.is(name)
    }

    fn write_registration(
        &self,
        variable: &str,
        _: &str,
        program: &str,
        completer: &str,
        output: &mut dyn io::Write,
    ) -> Result<(), io::Error> {
        let script = include_str!("completion/superpacket.bash");
        let script = script
            .replace("VARIABLE", variable)
            .replace("COMPLETER", completer)
            .replace("BIN", program);
        output.write_all(script.as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        directory: Option<&Path>,
        output: &mut dyn io::Write,
    ) -> Result<(), io::Error> {
        env::Bash.write_complete(command, words, directory, output)
    }
}

/// Zsh, with clap's script and one addition: if zsh autoloads the script from `fpath`, its first
/// run is the completion call itself, and must complete too.
struct Zsh;

impl EnvCompleter for Zsh {
    fn name(&self) -> &'static str {
        env::Zsh.name()
    }

    fn is(&self, name: &str) -> bool {
        env::Zsh.is(name)
    }

    fn write_registration(
        &self,
        variable: &str,
        name: &str,
        program: &str,
        completer: &str,
        output: &mut dyn io::Write,
    ) -> Result<(), io::Error> {
        env::Zsh.write_registration(variable, name, program, completer, output)?;
        writeln!(
            output,
            "if [[ ${{funcstack[1]}} == _{name} ]]; then\n    _clap_dynamic_completer_{name} \"$@\"\nfi"
        )
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        directory: Option<&Path>,
        output: &mut dyn io::Write,
    ) -> Result<(), io::Error> {
        env::Zsh.write_complete(command, words, directory, output)
    }
}
