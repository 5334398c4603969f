// Reads JSON of the API server as it arrives: the items of a list and the lines of a watch, one by one. Memory follows
// the largest object, not the length of a list, whatever sizes tenants give to their objects. Pure.

const [QUOTE, BACKSLASH, COMMA] = [0x22, 0x5c, 0x2c];
const [OPEN_OBJECT, CLOSE_OBJECT, OPEN_LIST, CLOSE_LIST] = [0x7b, 0x7d, 0x5b, 0x5d];
const NEWLINE = 0x0a;

/** Where the text ends or a backslash stands; else the end of the piece. */
function endOfPlainText(piece: Uint8Array, from: number): number {
  let at = from;
  while (at < piece.length && piece[at] !== QUOTE && piece[at] !== BACKSLASH) at += 1;
  return at;
}

const asBuffer = ({ buffer, byteOffset, length }: Uint8Array): Buffer => Buffer.from(buffer, byteOffset, length);

const parse = (parts: readonly Uint8Array[]): unknown => JSON.parse(Buffer.concat(parts).toString('utf8'));

type ItemReader = {
  push(piece: Uint8Array): void;
  /** The list without its items. Throws where the text ended too early. */
  end(): unknown;
};

/**
 * Calls `onItem` with each object in the top-level list of an object such as `{"metadata":{},"items":[{},{}]}`.
 * `mentions`: objects without this text in their JSON are passed over unread.
 */
export function createItemReader(onItem: (item: unknown) => void, mentions = ''): ItemReader {
  /** The text without items. */
  const frame: Uint8Array[] = [];
  /** What earlier pieces had of the item that is read. */
  let begun: Uint8Array[] = [];
  /** Of the byte that is read: how many objects and lists it is in. An item is at 2, and what is in it deeper. */
  let depth = 0;
  let [isInItems, isInItem, isInText, isEscaped] = [false, false, false, false];
  const readItem = (last: Uint8Array) => {
    const text = begun.length === 0 ? asBuffer(last) : Buffer.concat([...begun, last]);
    begun = [];
    if (text.includes(mentions)) onItem(JSON.parse(text.toString('utf8')));
  };
  return {
    push(piece) {
      let from = 0;
      for (let at = 0; at < piece.length; at += 1) {
        if (isInText) {
          if (!isEscaped) at = endOfPlainText(piece, at);
          const byte = piece[at];
          isInText = isEscaped || byte !== QUOTE;
          isEscaped = !isEscaped && byte === BACKSLASH;
          continue;
        }
        const byte = piece[at];
        if (byte === QUOTE) isInText = true;
        else if (byte === OPEN_OBJECT || byte === OPEN_LIST) {
          if (depth === 1) isInItems = byte === OPEN_LIST;
          if (depth === 2 && isInItems && byte === OPEN_OBJECT) {
            frame.push(piece.subarray(from, at));
            [from, isInItem] = [at, true];
          }
          depth += 1;
        } else if (byte === CLOSE_OBJECT || byte === CLOSE_LIST) {
          depth -= 1;
          if (depth === 2 && isInItem) {
            readItem(piece.subarray(from, at + 1));
            [from, isInItem] = [at + 1, false];
          }
        } else if (byte === COMMA && depth === 2 && isInItems) {
          frame.push(piece.subarray(from, at));
          from = at + 1;
        }
      }
      (isInItem ? begun : frame).push(piece.subarray(from));
    },
    end() {
      if (depth !== 0 || frame.every((part) => part.length === 0)) throw new Error('the list ended too early');
      return parse(frame);
    },
  };
}

/** The JSON values of a stream, one on each line. A last line without an end was cut and is left out. */
export async function* readJsonLines(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<unknown> {
  let line: Uint8Array[] = [];
  for await (const piece of pieces) {
    let from = 0;
    for (let end = piece.indexOf(NEWLINE); end >= 0; end = piece.indexOf(NEWLINE, from)) {
      line.push(piece.subarray(from, end));
      const whole = line;
      [from, line] = [end + 1, []];
      if (whole.some((part) => part.length > 0)) yield parse(whole);
    }
    line.push(piece.subarray(from));
  }
}
