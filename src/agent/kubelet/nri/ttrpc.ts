// The wire of the Node Resource Interface: one socket carries several connections in frames (number of the connection,
// length, both 32 bits, the highest byte first), and each connection carries ttrpc messages (length, stream, type,
// flags). Frames and messages need not begin or end together. The messages themselves are in messages.ts.

/** Connections: on one the runtime calls the plugin, on the other the plugin calls the runtime. */
export const PLUGIN_CONNECTION = 1;
export const RUNTIME_CONNECTION = 2;
export const REQUEST = 1;
export const RESPONSE = 2;

export type Message = {
  readonly connection: number;
  readonly stream: number;
  readonly type: number;
  readonly payload: Buffer;
};

const FRAME_HEADER = 8;
const MESSAGE_HEADER = 10;
/** Limit of the runtimes; a node with more pods is sent in several messages. */
export const LARGEST_MESSAGE = 4 << 20;
export const LARGEST_FRAME = LARGEST_MESSAGE + MESSAGE_HEADER;
/** The runtime reads through a buffer of this size, and fails if a frame does not fit into the rest of it. */
const OWN_FRAME = 4096;

type FrameReader = {
  /** Returns the messages that this piece completes. After `wrong` the stream cannot be parsed further. */
  push(piece: Buffer): { readonly messages: readonly Message[]; readonly wrong?: string };
};

/** Received bytes of which each unit has a header with its length. */
function createUnits(
  headerBytes: number,
  lengthAt: number,
  wrongWith: (header: Buffer, length: number) => string | undefined,
) {
  let bytes: Buffer = Buffer.alloc(0);
  /** The units that this piece completes; what is wrong with the next one ends the list. */
  return (piece: Buffer): { readonly units: readonly Buffer[]; readonly wrong: string | undefined } => {
    bytes = bytes.length === 0 ? piece : Buffer.concat([bytes, piece]);
    const units: Buffer[] = [];
    while (bytes.length >= headerBytes) {
      const length = bytes.readUInt32BE(lengthAt);
      const wrong = wrongWith(bytes, length);
      if (wrong !== undefined) return { units, wrong };
      if (bytes.length < headerBytes + length) break;
      units.push(bytes.subarray(0, headerBytes + length));
      bytes = bytes.subarray(headerBytes + length);
    }
    return { units, wrong: undefined };
  };
}

const createMessages = () =>
  createUnits(MESSAGE_HEADER, 0, (_, length) =>
    length > LARGEST_MESSAGE ? `a message of ${length} bytes` : undefined,
  );

export function createFrameReader(): FrameReader {
  const frames = createUnits(FRAME_HEADER, 4, (header, length) => {
    const connection = header.readUInt32BE(0);
    if (length > LARGEST_FRAME) return `a frame of ${length} bytes`;
    return connections.has(connection) ? undefined : `a frame of connection ${connection}`;
  });
  const connections = new Map([PLUGIN_CONNECTION, RUNTIME_CONNECTION].map((number) => [number, createMessages()]));
  let wrong: string | undefined;

  return {
    push(piece) {
      const messages: Message[] = [];
      if (wrong !== undefined) return { messages, wrong };
      const read = frames(piece);
      wrong = read.wrong;
      for (const frame of read.units) {
        const connection = frame.readUInt32BE(0);
        const found = connections.get(connection)?.(frame.subarray(FRAME_HEADER));
        wrong = found?.wrong ?? wrong;
        for (const unit of found?.units ?? [])
          messages.push({
            connection,
            stream: unit.readUInt32BE(4),
            type: unit.readUInt8(8),
            payload: unit.subarray(MESSAGE_HEADER),
          });
      }
      return wrong === undefined ? { messages } : { messages, wrong };
    },
  };
}

/** Splits a message into frames. */
export function framesOf({ connection, stream, type, payload }: Message): Buffer {
  const header = Buffer.alloc(MESSAGE_HEADER);
  header.writeUInt32BE(payload.length, 0);
  header.writeUInt32BE(stream, 4);
  header.writeUInt8(type, 8);
  const message = Buffer.concat([header, payload]);
  const frames: Buffer[] = [];
  for (let at = 0; at < message.length; at += OWN_FRAME) {
    const part = message.subarray(at, at + OWN_FRAME);
    const frame = Buffer.alloc(FRAME_HEADER);
    frame.writeUInt32BE(connection, 0);
    frame.writeUInt32BE(part.length, 4);
    frames.push(frame, part);
  }
  return Buffer.concat(frames);
}
