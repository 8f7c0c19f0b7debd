"""Lists options of programs that take a value: a mutant leaves out such an option with its value."""

from __future__ import annotations

import itertools
import re

#: The options of common programs that take a value; all other options of these programs take none.
_WITH_VALUE = {
    name: frozenset(options.split())
    for names, options in (
        ("curl", (
            "-o --output -H --header -d --data --data-raw --data-binary --data-urlencode -X --request -m --max-time "
            "--connect-timeout --retry --retry-delay --retry-max-time -w --write-out -u --user -A --user-agent -x --proxy "
            "-K --config -F --form -T --upload-file -b --cookie -c --cookie-jar -r --range -e --referer -E --cert --key "
            "--cacert --capath --noproxy --resolve --interface --unix-socket -C --continue-at --output-dir --limit-rate "
            "-Y --speed-limit -y --speed-time -D --dump-header --max-redirs"
        )),
        ("wget", (
            "-O --output-document -P --directory-prefix -o --output-file -a --append-output -t --tries -T --timeout "
            "--waitretry --header -U --user-agent --post-data -e --connect-timeout --read-timeout --user --password"
        )),
        ("tar", "-f --file -C --directory -X --exclude-from -T --files-from"),
        ("install", "-m --mode -o --owner -g --group -t --target-directory"),
        ("cp mv ln", "-t --target-directory"),
        ("mkdir mknod", "-m --mode"),
        ("rm rmdir touch chmod chown cat ls gzip", ""),
        ("mount", "-t --types -o --options -L -U"),
        ("apt-get apt", "-o --option -t --target-release -c --config-file"),
        ("yum dnf", "-c --config --enablerepo --disablerepo -x --exclude --setopt --installroot --releasever"),
        ("grep egrep fgrep zgrep", "-e --regexp -f --file -m --max-count -A -B -C"),
        ("sed", "-e --expression -f --file"),
        ("awk gawk mawk", "-F -v -f"),
        ("cut", "-d -f -c -b"),
        ("sort", "-k -t -o -S -T"),
        ("head tail", "-n --lines -c --bytes"),
        ("xargs", "-n -I -P -d -L -a -s"),
        ("find",
         "-name -iname -path -type -maxdepth -mindepth -mtime -mmin -perm -user -group -newer -size -regex"),
        ("mktemp", "-p"),
        ("unzip", "-d"),
        ("date", "-d --date -r -f"),
        ("kill", "-s -n"),
        ("useradd usermod", "-u --uid -g --gid -G --groups -d --home-dir --home -s --shell -c --comment"),
        ("groupadd", "-g --gid"),
        ("systemctl", "-t --type -p --property -n --lines -o --output -s --signal"),
        ("journalctl", "-u --unit -n --lines -o --output -S --since -U --until -p --priority -t"),
        ("logger", "-t --tag -p --priority"),
        ("ctr", "-n --namespace -a --address --snapshotter --platform --user -u --mount --env --label"),
        ("kubectl",
         "-n --namespace -f --filename -o --output -l --selector -c --container --kubeconfig --timeout --context"),
        ("dkms", "-m --module -v --version -k --kernelver -a --arch"),
        ("modinfo", "-F --field -k --set-version -b --basedir"),
        ("lspci", "-d -s -i"),
        ("nvidia-smi", "-i --id -pm -pl -mig -d --display -c -e -lgc -ac -l -f"),
        ("iptables ip6tables",
         "-A -I -D -p -j -s -d -i -o -t -m --dport --sport --to-ports --to-destination --state --ctstate --comment"),
        ("flock", "-w --timeout -E"),
        ("update-initramfs", "-k"),
        ("ssh", "-i -o -p -l -F"),
        ("scp", "-i -o -P -F"),
        ("git", "-C -c -b -m --depth --branch"),
    )
    for name in names.split()
}  # fmt: skip
_NUMBER = re.compile(r"\d+(?:\.\d+)?[smhd]?")


def is_option(text: str) -> bool:
    return text.startswith("-") and text not in {"-", "--"}


def is_known(program: str) -> bool:
    """Return whether this module lists which options of a program take a value."""
    return program in _WITH_VALUE


def option_values(program: str, texts: list[str]) -> dict[int, int]:
    """Map the position of each option's value to how many characters of the option's word to keep.

    The number is 0 for a word like `-o`, and 4 (for `-fsS`) for a word like `-fsSo`.
    """
    known = _WITH_VALUE.get(program)
    found: dict[int, int] = {}
    for i, (option, value) in enumerate(itertools.pairwise(texts)):
        if i in found or not is_option(option) or "=" in option:
            continue
        if known is None:
            if not option[1:].isdigit() and _NUMBER.fullmatch(value):
                found[i + 1] = 0
        elif option in known:
            found[i + 1] = 0
        elif re.fullmatch(r"-[A-Za-z]{2,6}", option) and [
            letter for letter in option[1:] if f"-{letter}" in known
        ] == [option[-1]]:
            found[i + 1] = len(option) - 1
    return found
