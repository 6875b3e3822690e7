"""Fill in nginx.conf from the environment and become nginx.

PROXY_LISTEN          where sites connect: ADDRESS:PORT
PROXY_SUPERLINK       where the SuperLink is: HOST:PORT
PROXY_KEYS            directory of server.key, server.pem and ca.crt
PROXY_RUN             directory that nginx may write to
"""

import ipaddress
import os
import re
import shutil
import string
from pathlib import Path


def resolver(text: str) -> str:
    """Give nginx's line for the name servers of a resolv.conf; nothing where there are none."""
    found = re.findall(r"^nameserver\s+(\S+)", text, re.MULTILINE)
    servers = [f"[{server}]" if ":" in server else server for server in found]
    return f"resolver {' '.join(servers)} valid=10s;" if servers else ""


def certified_name(host: str) -> str:
    """Give the name to look for in the SuperLink's certificate: nginx compares no addresses, and all have this one."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    return "localhost"


def main() -> None:
    """Write the configuration and replace this process by nginx."""
    values = {
        key: os.environ[key]
        for key in ("PROXY_LISTEN", "PROXY_SUPERLINK", "PROXY_KEYS", "PROXY_RUN")
    }
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if nginx is None:
        raise SystemExit("the proxy is nginx, which is not installed here: apt-get install nginx")
    host = values["PROXY_SUPERLINK"].rpartition(":")[0].strip("[]")
    values["PROXY_SUPERLINK_NAME"] = certified_name(host)
    values["PROXY_RESOLVER"] = resolver(Path("/etc/resolv.conf").read_text())
    template = string.Template(Path(__file__).with_name("nginx.conf").read_text())
    file = Path(values["PROXY_RUN"], "nginx.conf")
    file.write_text(template.safe_substitute(values))
    os.execv(nginx, ["nginx", "-c", str(file), "-e", "stderr", "-g", "daemon off;"])


if __name__ == "__main__":
    main()
