"""What the program itself says: checkpoints, numbers, data, settings, code, and standing still."""

from flows.failures.signatures.signature import (
    CAUSE,
    CONFIG,
    EXC,
    EXCLUDE,
    HINT,
    NONE,
    ONCE,
    PLAIN,
    RETRY,
    USER,
    rows,
)

CHECKPOINT = [
    *rows(
        CAUSE + 2,
        "checkpoint",
        (
            "ckpt_corrupt",
            RETRY,
            r"PytorchStreamReader failed|failed finding central directory"
            r"|invalid header or archive is corrupted|unexpected EOF, expected \d+ more bytes"
            r"|(checkpoint|ckpt|shard).{0,80}(corrupt|checksum|hash mismatch|digest|truncated"
            r"|incomplete)|(corrupt|checksum).{0,60}(checkpoint|ckpt)"
            r"|UnpicklingError|pickle data was truncated",
        ),
        (
            "safetensors_header",
            CONFIG,
            r"SafetensorError|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer"
            r"|Error while deserializing header",
        ),
        ("ckpt_shape_mismatch", USER, r"size mismatch for \S+|shape mismatch.*(checkpoint|state_dict)"),
        (
            "ckpt_missing_key",
            USER,
            r"(Missing|Unexpected) key\(s\)( in state_dict)?|loading state_dict for"
            r"|Missing key in checkpoint",
        ),
        (
            "ckpt_missing",
            CONFIG,
            r"valid checkpoint (at|found|in)|(FileNotFoundError|No such file|does not exist"
            r"|not found|could not find|no checkpoint).{0,200}(checkpoint|ckpt|global_step|iter_\d"
            r"|\.distcp|\.pt\b|\.pth\b|safetensors)"
            r"|(checkpoint|ckpt)\S{0,200} (does not exist|not found|is missing)",
        ),
    ),
]

NUMERIC = [
    *rows(
        CAUSE + 1,
        "numeric",
        ("loss_scale_min", USER, r"loss scale.{0,40}(minimum|too small|at min)|Minimum loss scale reached"),
        (
            "nan_loss",
            USER,
            r"(loss|grad\w*|norm|activation|output|logits).{0,60}(is|was|became|contains?|has|="
            r"|:)\s*(a )?(nan|inf|non[- ]?finite)"
            r"|(NaN|Inf|non[- ]?finite) (or (NaN|Inf) )?(loss|grad\w*|values?|detected|encountered"
            r"|in )|returned nan values"
            r"|FloatingPointError|found (NaN|Inf)|detected (NaN|Inf)|unstable training.*nan",
        ),
    ),
]

DATA = [
    *rows(
        CAUSE + 1,
        "data",
        (
            "corrupt_sample",
            USER,
            r"UnidentifiedImageError|cannot identify image|image file is truncated"
            r"|Truncated File Read|broken data stream|Corrupt JPEG",
        ),
        (
            "truncated_shard",
            CONFIG,
            r"tarfile\.ReadError|unexpected end of data|Compressed file ended before|DataLossError"
            r"|truncated (record|shard|file)|mmap length is greater",
        ),
        (
            "corrupt_file",
            CONFIG,
            r"ArrowInvalid|Parquet magic|BadZipFile|BadGzipFile|zlib\.error"
            r"|Error -3 while decompressing|lzma\.LZMAError|zstd.*(error|corrupt)"
            r"|corrupt(ed)? (record|shard|index|data|file|archive)|bad magic|(Unable to"
            r"|can't) (synchronously )?open (file|object).*(signature|truncated|header)",
        ),
        (
            "decode_error",
            USER,
            r"UnicodeDecodeError|JSONDecodeError|(Invalid|Error).*(decod|demux)|av\.error"
            r"|moov atom not found|ParserError",
        ),
        (
            "missing_dataset",
            CONFIG,
            r"(DatasetNotFoundError|DataFilesNotFoundError|dataset\S* (not found|does not exist"
            r"|is empty)|num_samples should be a positive"
            r"|Found 0 (files|images)|no (data|training) (files|samples|shards)|empty dataset)",
        ),
        ("missing_file", CONFIG, r"FileNotFoundError|No such file or directory|Errno 2\b"),
    ),
]

CONFIGURATION = [
    *rows(
        CAUSE + 2,
        "user_config",
        (
            "bad_arguments",
            CONFIG,
            r"error: (unrecognized arguments|the following arguments are required|argument "
            r"|invalid choice|ambiguous option)"
            r"|No such option|Missing (option|argument)|unexpected (keyword )?argument.*config"
            r"|invalid choice: |can't open file '",
        ),
        ("duplicate_gpu", CONFIG, r"Duplicate GPU detected"),
        (
            "too_many_processes",
            CONFIG,
            r"invalid device ordinal|device_count\(\)|only \d+ GPUs? (is|are) (available|visible)"
            r"|nproc_per_node.*(greater|more)",
        ),
        (
            "batch_config",
            CONFIG,
            r"batch[ _]?size.{0,120}(divisible|not equal|does not match|is not equal|multiple of)"
            r"|(micro|train|global)[_ ]batch\S*.{0,100}(divisible|!=|equal)",
        ),
        (
            "wrong_world_size",
            CONFIG,
            r"world[ _]size.{0,100}(divisible|expected|mismatch|not equal|does not match|must be)"
            r"|(tensor|pipeline|context|expert|data)[-_ ](model[-_ ])?parallel.{0,100}(divisible"
            r"|size|must)"
            r"|must be divisible by|not divisible by",
        ),
        (
            "bad_config_file",
            CONFIG,
            r"yaml\.(scanner|parser|constructor)\S*Error|ScannerError|ParserError.*ya?ml"
            r"|TOMLDecodeError|(hydra|omegaconf)\S*(Exception|Error)"
            r"|Missing(Mandatory|Config)\w*|Config(Attribute|Key)Error|pydantic\S*ValidationError"
            r"|Could not override|not in struct",
        ),
        (
            "missing_key",
            CONFIG,
            r"KeyError: '[\w.]*(config|cfg|model|train|optim|lr|batch|arch|tokenizer|data_path"
            r"|num_|hidden|layers?)\w*'",
        ),
    ),
]

USER_CODE = [
    *rows(
        CAUSE + 1,
        "user_code",
        (
            "device_side_assert",
            USER,
            r"device-side assert|Assertion `.*` failed|indexSelectLargeIndex|ClassNLLCriterion",
        ),
        (
            "cuda_illegal_access",
            EXCLUDE,
            r"illegal memory access|misaligned address|unspecified launch failure",
        ),
        (
            "collective_mismatch",
            USER,
            r"Detected mismatch between collectives|mismatch.*(collective|rank)"
            r"|collective.{0,80}mismatch|different (shapes|collectives|ops) (across|between"
            r"|on) ranks"
            r"|does not match (the )?(shape|op) .*rank",
        ),
        (
            "collate_size",
            USER,
            r"stack expects each tensor to be equal size|default_collate|unable to (collate|stack)",
        ),
        ("pickle_error", USER, r"Can't pickle|cannot pickle|PicklingError"),
        ("syntax_error", USER, EXC + r"(SyntaxError|IndentationError|TabError)"),
        (
            "shape_mismatch",
            USER,
            r"shapes? cannot be multiplied|size of tensor .* must match|mat1 and mat2"
            r"|shape '.*' is invalid for input|Sizes of tensors must match"
            r"|expected .{0,60}(shape|size|dim|channels)|same (shape|dtype)|expected scalar type"
            r"|Expected all tensors to be on the same device",
        ),
        ("unused_parameters", USER, r"Expected to have finished reduction in the prior iteration"),
        (
            "autograd",
            USER,
            r"backward through the graph a second time"
            r"|needed for gradient computation has been modified|does not require grad",
        ),
    ),
    *rows(
        PLAIN,
        "user_code",
        ("type_error", USER, EXC + r"TypeError\b"),
        ("attribute_error", USER, EXC + r"AttributeError\b"),
        ("name_error", USER, EXC + r"(NameError|UnboundLocalError)\b"),
        ("index_error", USER, EXC + r"IndexError\b"),
        ("key_error", USER, EXC + r"KeyError\b"),
        ("assertion", USER, EXC + r"AssertionError\b"),
        (
            "value_error",
            USER,
            EXC + r"(ValueError|ZeroDivisionError|OverflowError|RecursionError|NotImplementedError"
            r"|StopIteration)\b",
        ),
    ),
]

HANGS = [
    *rows(
        CAUSE,
        "hang",
        (
            "watchdog_stuck",
            ONCE,
            r"watchdog (got|is|seems) stuck|HeartbeatMonitor|watchdog.*(no heartbeat|hang)",
        ),
        ("dataloader_timeout", RETRY, r"DataLoader timed out after"),
        (
            "silent_hang",
            ONCE,
            r"no (step|progress|output|log).{0,60}(for|since|in) \d+|(step"
            r"|progress) (has )?(stalled|not advanc)|hang detected|stuck (at|in|for)",
        ),
    ),
]

SIGNALS = [
    *rows(
        HINT + 5,
        "unknown",
        ("dataloader_worker_died", ONCE, r"DataLoader worker .{0,60}exited unexpectedly"),
        ("sigsegv", ONCE, r"Segmentation fault|SIGSEGV"),
    ),
    *rows(
        HINT + 5,
        "cancelled",
        ("sigint", NONE, EXC + r"KeyboardInterrupt|received SIGINT|Received 2 death signal|got signal: 2\b"),
        ("sighup", RETRY, r"SIGHUP|got signal: 1\b|death signal: 1\b|Hangup"),
    ),
]
