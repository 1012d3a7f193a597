# Sourced by the download scripts: fetch FILE downloads a file to the current folder, completely or not at all.
# MIRROR is the address of a copy of the files (https://… or file:///…).
# SHA256, if set, is the checksum that the file must have.
MIRROR=${MIRROR:-https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main}
MOST_BYTES=${MOST_BYTES:-2000000000}

stop() {
    echo "error: $1" >&2
    exit 1
}

[ $# -eq 0 ] || stop "$0 takes no arguments, but got $*; the variables MIRROR and SHA256 set the address and the checksum"

sha256() {
    (sha256sum "$1" || shasum -a 256 "$1") 2> /dev/null | cut -d ' ' -f 1
}

# The address and all redirections must be https, or a local file.
safe_curl() {
    curl --fail --proto '=https,file' --proto-redir '=https' --max-filesize "$MOST_BYTES" --retry 3 "$@"
}

# linked_sha256 URL: print the checksum that the hub sends for a large file, or nothing.
linked_sha256() {
    case $1 in
        https://*) safe_curl --silent --head "$1" 2> /dev/null | tr -d '\r"' |
            sed -n 's/^[Xx]-[Ll]inked-[Ee][Tt][Aa][Gg]: *\([0-9a-f]\{64\}\)$/\1/p' || true ;;
    esac
}

# require_sha256 FILE EXPECTED DELETE: stop if the checksum differs; an empty EXPECTED is not checked.
require_sha256() {
    [ -z "$2" ] || [ "$(sha256 "$1")" = "$2" ] ||
        stop "$1 does not have the expected sha256 $2; delete ${3:-it} and run this again"
}

# fetch FILE CHECK: download FILE to FILE.part, resuming an interrupted download, compare its checksum, run CHECK
# FILE.part, and rename it to FILE. If FILE exists, it is only checked.
fetch() {
    local file=$1 check=$2 wanted=${SHA256:-}
    case $MIRROR in
        https://* | file://*) ;;
        *) stop "MIRROR=$MIRROR is neither https:// nor file://; other connections can be tampered with" ;;
    esac
    if [ -e "$file" ]; then
        require_sha256 "$file" "$wanted"
        "$check" "$file"
        echo "$file already exists and is complete"
        return
    fi
    if [ -e "$file.part" ] && (require_sha256 "$file.part" "$wanted" && "$check" "$file.part") > /dev/null 2>&1; then
        : # an earlier call was interrupted between download and renaming
    else
        command -v curl > /dev/null || stop "curl is not installed; install it (wget would follow redirections to http)"
        wanted=${wanted:-$(linked_sha256 "$MIRROR/$file")}
        safe_curl --location --continue-at - --output "$file.part" "$MIRROR/$file" ||
            stop "could not download $MIRROR/$file; check the connection and MIRROR, and run this again"
        require_sha256 "$file.part" "$wanted"
    fi
    "$check" "$file.part"
    mv "$file.part" "$file"
    echo "$file: $(wc -c < "$file") bytes, sha256 $(sha256 "$file")"
}

# expect_count FILE FOUND EXPECTED UNIT [DELETE]: stop if the count differs; DELETE is the file to delete (default: FILE).
expect_count() {
    [ "$2" -eq "$3" ] || stop "$1 contains $2 $4, but $3 are expected; delete ${5:-it} and run this again"
}
