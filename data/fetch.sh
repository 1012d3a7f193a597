# Sourced by the download scripts: fetch FILE into the current folder, whole or not at all.
# MIRROR is another place that holds the same files (https://… or file:///…).
# SHA256, where it is set, is the checksum that the file must have.
MIRROR=${MIRROR:-https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main}
MOST_BYTES=${MOST_BYTES:-2000000000}

stop() {
    echo "error: $1" >&2
    exit 1
}

sha256() {
    (sha256sum "$1" || shasum -a 256 "$1") 2> /dev/null | cut -d ' ' -f 1
}

# Encrypted all the way: neither the first address nor one that it leads on to may be plain http.
safe_curl() {
    curl --fail --proto '=https,file' --proto-redir '=https' --max-filesize "$MOST_BYTES" --retry 3 "$@"
}

# linked_sha256 URL: the checksum that the hub itself tells of a large file, or nothing.
linked_sha256() {
    case $1 in
        https://*) safe_curl --silent --head "$1" 2> /dev/null | tr -d '\r"' |
            sed -n 's/^[Xx]-[Ll]inked-[Ee][Tt][Aa][Gg]: *\([0-9a-f]\{64\}\)$/\1/p' || true ;;
    esac
}

# require_sha256 FILE EXPECTED DELETE: nothing is expected of a file whose checksum nobody knows.
require_sha256() {
    [ -z "$2" ] || [ "$(sha256 "$1")" = "$2" ] ||
        stop "$1 is not the file that is wanted (sha256 $2); delete ${3:-it} and run this again"
}

# fetch FILE CHECK: download FILE to FILE.part, going on where an earlier call was cut off, compare its checksum, run
# CHECK FILE.part, and only then give it its name. A file that is there already is checked and kept.
fetch() {
    local file=$1 check=$2 wanted=${SHA256:-}
    case $MIRROR in
        https://* | file://*) ;;
        *) stop "MIRROR=$MIRROR is neither https:// nor file://; what comes another way can be exchanged on it" ;;
    esac
    if [ -e "$file" ]; then
        require_sha256 "$file" "$wanted"
        "$check" "$file"
        echo "$file is here already, and whole"
        return
    fi
    if [ -e "$file.part" ] && (require_sha256 "$file.part" "$wanted" && "$check" "$file.part") > /dev/null 2>&1; then
        : # an earlier call got it all and was cut off before it could name it
    else
        command -v curl > /dev/null || stop "curl is not here; install it (wget follows redirections to http)"
        wanted=${wanted:-$(linked_sha256 "$MIRROR/$file")}
        safe_curl --location --continue-at - --output "$file.part" "$MIRROR/$file" ||
            stop "could not download $MIRROR/$file; what came is kept in $file.part, run this again to go on"
        require_sha256 "$file.part" "$wanted"
    fi
    "$check" "$file.part"
    mv "$file.part" "$file"
    echo "$file: $(wc -c < "$file") bytes, sha256 $(sha256 "$file")"
}

# expect_count FILE FOUND EXPECTED WHAT [DELETE]: DELETE is what stands in the way of a new download, by default FILE.
expect_count() {
    [ "$2" -eq "$3" ] || stop "$1 holds $2 $4, $3 are expected; delete ${5:-it} and run this again"
}
