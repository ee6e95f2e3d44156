//! Images of servers: agnhost with the tools of its usual image, the pets of upstream's update demo, and nginx.

use std::path::Path;

use anyhow::Result;

use super::super::layout::{Entry, Layer, Layout, Start, layer};
use super::super::{AGNHOST, AGNHOST_OLD};
use super::{E2E, busybox, read};
use crate::programs::{PORTER, Programs};

/// A user and groups that specs need.
const USER: &str = "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n";
const GROUPS: &str = "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n";

const NGINX: &str = "user www-data;
worker_processes 1;
pid /run/nginx.pid;
error_log /dev/stderr notice;
events { worker_connections 256; }
http {
    access_log /dev/stdout;
    server { listen 80; root /usr/share/nginx/html; index index.html; }
}
";

const PAGE: &str =
    "<html><head><title>Welcome to nginx!</title></head><body><h1>Welcome to nginx!</h1></body></html>\n";

/// Writes the images. `root` is the folder with the content of the layer `base`.
pub(super) fn write(layout: &mut Layout, programs: &Programs, root: &Path, base: &Layer) -> Result<()> {
    let agnhost = layout.layer(&layer(&agnhost(programs, root)?)?)?;
    let layers = [base.clone(), agnhost];
    let start = Start { entrypoint: &["/agnhost"], command: &["pause"], ..Start::default() };
    layout.image(&[AGNHOST, AGNHOST_OLD, &format!("{E2E}/agnhost:2.53")], &layers, &start)?;
    for pet in ["kitten", "nautilus"] {
        let data = format!("{{\"image\": \"{pet}.jpg\"}}\n");
        let own = [
            Entry::File("data.json".into(), 0o644, data.into()),
            // A spec expects the system of upstream's image.
            Entry::File("etc/os-release".into(), 0o644, b"NAME=\"Alpine Linux\"\n".to_vec()),
        ];
        let data = layout.layer(&layer(&own)?)?;
        let start = Start { command: &["test-webserver"], ..start.clone() };
        layout.image(&[&format!("{E2E}/{pet}:1.8")], &[layers.as_slice(), &[data]].concat(), &start)?;
    }
    let nginx = layout.layer(&layer(&[
        Entry::File("etc/nginx/nginx.conf".into(), 0o644, NGINX.into()),
        Entry::File("usr/share/nginx/html/index.html".into(), 0o644, PAGE.into()),
    ])?)?;
    let start = Start { command: &["nginx", "-g", "daemon off;"], ..Start::default() };
    let names = ["nginx:1.27.0-2", "nginx:1.28.0-2"].map(|name| format!("{E2E}/{name}"));
    layout.image(&names.each_ref().map(String::as_str), &[base.clone(), nginx], &start)
}

fn agnhost(programs: &Programs, root: &Path) -> Result<Vec<Entry>> {
    let with = |file: &str, more: &str| Ok::<_, anyhow::Error>([read(&root.join(file))?, more.into()].concat());
    let [certificate, key] = PORTER.map(|name| programs.path(name));
    let mut entries = vec![
        Entry::File("agnhost".into(), 0o755, read(&programs.path("agnhost"))?),
        Entry::Link("agnhost-2".into(), "agnhost".into()),
        Entry::File("localhost.crt".into(), 0o644, read(&certificate)?),
        Entry::File("localhost.key".into(), 0o644, read(&key)?),
        Entry::Folder("uploads".into(), 0o755),
        Entry::File("etc/passwd".into(), 0o644, with("etc/passwd", USER)?),
        Entry::File("etc/group".into(), 0o644, with("etc/group", GROUPS)?),
        // Debian's dash drops variables whose names have a dash, which some specs use.
        Entry::Link("usr/bin/sh".into(), "bash".into()),
        Entry::Link("usr/local/bin/iperf".into(), "/usr/bin/iperf".into()),
        Entry::File("usr/local/bin/busybox".into(), 0o755, busybox::program()?),
    ];
    entries.extend(busybox::links(root, "/usr/local/bin/busybox")?);
    Ok(entries)
}
