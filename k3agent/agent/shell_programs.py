"""Which programs only look, write, reach out or run others: the lists that commands are judged by."""

from __future__ import annotations

import re

from k3agent.agent.shell_syntax import SHELLS


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


READERS = names(
    """
    ls cat head tail wc pwd echo printf true false test [ : which type whoami id date uname file stat du
    df tree sort uniq cut tr diff cmp comm nl tac rev basename dirname realpath readlink grep egrep
    fgrep rg jq column paste join fold expand seq printenv ps uptime sleep md5sum sha1sum sha256sum od
    hexdump strings cd pushd popd read wait exit return break continue shift set local
    """
)
# Options with which a reader writes or runs something.
READER_EXCEPTIONS = {
    "sort": ("-o", "--output", "--compress-program"),
    "tree": ("-o", "-R"),
    "rg": ("--pre", "--hostname-bin"),
    "date": ("-s", "--set"),
    "file": ("-C", "--compile"),
    "printf": ("-v",),
}
WRAPPERS = names(
    """
    env nice timeout xargs time stdbuf ionice nohup setsid command builtin exec busybox unbuffer watch
    flock chrt parallel eval find coproc
    """
)
WRITERS = names(
    """
    rm rmdir mv cp ln touch mkdir mktemp tee dd install chmod chown chgrp truncate shred unlink rsync
    tar unzip gzip gunzip patch split csplit sed perl uniq ed ex vi vim chattr setfacl mkfifo mknod
    """
)
PRIVILEGED = names("sudo su doas pkexec run0 chroot unshare nsenter")
SYSTEM = names(
    """
    shutdown reboot halt poweroff fdisk parted mount umount systemctl service crontab at iptables nft
    useradd userdel usermod passwd insmod rmmod modprobe swapoff pkill killall mkfs
    """
)
NETWORK = names("curl wget ssh scp sftp nc ncat netcat telnet ftp socat")
INTERPRETERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php"}
DANGEROUS_ENV = names(
    """
    PATH LD_PRELOAD LD_LIBRARY_PATH BASH_ENV ENV PROMPT_COMMAND PS4 PS0 BASH_ALIASES
    SHELLOPTS BASHOPTS GIT_SSH_COMMAND GIT_EXTERNAL_DIFF PAGER
    CDPATH GIT_DIR GIT_WORK_TREE GIT_SSH GIT_EXEC_PATH GIT_CONFIG GIT_CONFIG_COUNT GIT_CONFIG_GLOBAL
    """
)
# Builtins that set variables named by their words.
SETTERS = names("read printf local mapfile readarray getopts export declare typeset")
# A function by such a name would not be called where the real thing is, or would be mistaken for it.
BUILTINS = names(
    """
    . source eval exec command builtin trap alias unalias hash enable set shopt cd pushd popd export read kill
    coproc mapfile readarray complete compgen : [ test echo printf pwd type wait exit return
    """
)
KNOWN = BUILTINS | READERS | WRAPPERS | WRITERS | PRIVILEGED | SYSTEM | NETWORK | INTERPRETERS | {"git"}
PUBLISH = {
    "npm": "publish",
    "pnpm": "publish",
    "yarn": "publish",
    "twine": "upload",
    "docker": "push",
    "cargo": "publish",
    "gh": "",
}
CONTAINERS = names("docker podman nerdctl kubectl")
CONTAINER_READERS = names("ps images logs version info inspect top stats port diff history get describe")
HARMLESS_ENV = re.compile(r"LC_\w+|LANG|LANGUAGE|TZ|NO_COLOR|COLUMNS|LINES|TERM|GIT_PAGER|CLICOLOR")
