//! Writes the script by which Wireshark runs this program, and removes it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use superpacket_captures::file::write_file;

use crate::failure::Failure;
use crate::report::print;

/// The name of the script.
const SCRIPT: &str = if cfg!(windows) { "superpacket.bat" } else { "superpacket" };

/// Writes the script into `folder`; by default, into the user's extcap folders of Wireshark.
///
/// # Errors
/// If a folder is unknown, or cannot be written.
pub(super) fn install(folder: Option<&Path>, sockets: &[PathBuf]) -> Result<(), Failure> {
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).map_err(|source| Failure::Page { path: path.clone(), source })
    };
    let program = std::env::current_exe()
        .map_err(|error| Failure::Usage(format!("this program's path is unknown: {error}")))?;
    let sockets = sockets.iter().map(absolute).collect::<Result<Vec<_>, _>>()?;
    let text = script(&program, &sockets);
    let mut report = String::new();
    for folder in folders(folder)? {
        let path = folder.join(SCRIPT);
        let written = fs::create_dir_all(&folder)
            .and_then(|()| write_file(&path, &text))
            .and_then(|()| make_executable(&path));
        written.map_err(|source| Failure::Page { path: path.clone(), source })?;
        report.push_str(&format!("written: {}\n", path.display()));
    }
    report.push_str("\nWireshark lists the interface superpacket when it starts, or after F5.\n");
    Ok(print(&report, false)?)
}

/// Removes the script from `folder`; by default, from the user's extcap folders of Wireshark.
///
/// # Errors
/// If a folder is unknown, or the script cannot be removed.
pub(super) fn uninstall(folder: Option<&Path>) -> Result<(), Failure> {
    let mut report = String::new();
    for folder in folders(folder)? {
        let path = folder.join(SCRIPT);
        match fs::remove_file(&path) {
            Ok(()) => report.push_str(&format!("removed: {}\n", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Failure::Page { path, source }),
        }
    }
    if report.is_empty() {
        report.push_str("nothing was installed\n");
    }
    Ok(print(&report, false)?)
}

/// Returns the folders that the script is written to: the given one, or the user's extcap folders
/// of all versions of Wireshark. Each version searches only one of these, so the interfaces are
/// listed once, and remain after an update of Wireshark.
fn folders(folder: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    match folder {
        Some(folder) => Ok(vec![folder.to_owned()]),
        None => personal_folders(&|name| std::env::var_os(name).filter(|value| !value.is_empty())),
    }
}

fn personal_folders(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<PathBuf>, Failure> {
    let folder = |name: &str| {
        variable(name).map(PathBuf::from).ok_or_else(|| {
            Failure::Usage(format!(
                "{name} is not set: give --install=FOLDER (or --uninstall=FOLDER)"
            ))
        })
    };
    if cfg!(windows) {
        return Ok(vec![folder("APPDATA")?.join("Wireshark").join("extcap")]);
    }
    let home = folder("HOME")?;
    let configuration = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let configuration = configuration.unwrap_or_else(|| home.join(".config")).join("wireshark");
    // Wireshark no longer reads its first folder once the other one exists.
    let first = home.join(".wireshark");
    let older = if first.is_dir() && !configuration.is_dir() { first } else { configuration };
    // The first one is that of Wireshark 4.2 and later.
    Ok(vec![home.join(".local/lib/wireshark/extcap"), older.join("extcap")])
}

/// Returns a script that passes its arguments to the program at this path, and prints an error if
/// the program no longer exists.
#[cfg(unix)]
fn script(program: &Path, sockets: &[PathBuf]) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;

    let quoted = |text: &std::ffi::OsStr| {
        let escaped =
            text.as_bytes().split(|&byte| byte == b'\'').collect::<Vec<_>>().join(&b"'\\''"[..]);
        [b"'", &escaped[..], b"'"].concat()
    };
    let mut options = Vec::new();
    for socket in sockets {
        options.extend_from_slice(b" --control ");
        options.extend_from_slice(&quoted(socket.as_os_str()));
    }
    [
        b"#!/bin/sh\n# Written by `superpacket extcap --install`.\nprogram=",
        &quoted(program.as_os_str())[..],
        b"\nif [ ! -x \"$program\" ]; then\n    \
          echo \"superpacket: $program is gone: repeat superpacket extcap --install\" >&2\n    \
          exit 2\nfi\nexec \"$program\" extcap",
        &options,
        b" \"$@\"\n",
    ]
    .concat()
}

/// Returns a script that passes its arguments to the program at this path, and prints an error if
/// the program no longer exists.
#[cfg(not(unix))]
fn script(program: &Path, _sockets: &[PathBuf]) -> Vec<u8> {
    // A percent sign begins a variable.
    let program = program.display().to_string().replace('%', "%%");
    let gone = "is gone: repeat superpacket extcap --install";
    format!(
        "@echo off\r\nrem Written by superpacket extcap --install.\r\nif not exist \"{program}\" (\r\n    \
         echo superpacket: \"{program}\" {gone} 1>&2\r\n    exit /b 2\r\n)\r\n\"{program}\" extcap %*\r\n"
    )
    .into_bytes()
}

#[cfg(unix)]
fn make_executable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_folders_of_all_versions_are_found() {
        let home = tempfile::tempdir().expect("a folder");
        let at = |name: &str| home.path().join(name);
        let folders = |configuration: Option<&str>| {
            personal_folders(&|name| match name {
                "HOME" => Some(home.path().into()),
                "XDG_CONFIG_HOME" => configuration.map(|name| at(name).into()),
                _ => None,
            })
            .expect("HOME is set")
        };
        let new = at(".local/lib/wireshark/extcap");
        assert_eq!(folders(None), [new.clone(), at(".config/wireshark/extcap")]);
        assert_eq!(folders(Some("xdg")), [new.clone(), at("xdg/wireshark/extcap")]);
        fs::create_dir(at(".wireshark")).expect("made");
        assert_eq!(folders(None), [new.clone(), at(".wireshark/extcap")]);
        fs::create_dir_all(at(".config/wireshark")).expect("made");
        assert_eq!(folders(None), [new, at(".config/wireshark/extcap")]);
        let error = personal_folders(&|_| None).expect_err("no home").to_string();
        assert!(error.contains("HOME is not set"), "{error}");
    }
}
