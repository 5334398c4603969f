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

/** Received bytes as pieces, joined only when a frame or message is complete, so that small pieces are not copied each
 * time. */
function createQueue() {
  const pieces: Buffer[] = [];
  let length = 0;
  return {
    length: () => length,
    push(piece: Buffer) {
      if (piece.length === 0) return;
      pieces.push(piece);
      length += piece.length;
    },
    /** The first `count` bytes, which must be there. */
    take(count: number): Buffer {
      const taken: Buffer[] = [];
      for (let left = count; left > 0; ) {
        const [first = Buffer.alloc(0)] = pieces;
        if (first.length <= left) {
          taken.push(first);
          pieces.shift();
          left -= first.length;
        } else {
          taken.push(first.subarray(0, left));
          pieces[0] = first.subarray(left);
          left = 0;
        }
      }
      length -= count;
      return taken.length === 1 && taken[0] ? taken[0] : Buffer.concat(taken);
    },
  };
}

export type FrameReader = {
  /** Returns the messages that this piece completes. After `wrong` the stream cannot be parsed further. */
  push(piece: Buffer): { readonly messages: readonly Message[]; readonly wrong?: string };
};

export function createFrameReader(): FrameReader {
  const trunk = createQueue();
  const connections = new Map<number, ReturnType<typeof createConnection>>();
  let frame: { readonly connection: number; left: number } | undefined;
  let wrong: string | undefined;

  const deliver = (messages: Message[]): string | undefined => {
    for (;;) {
      if (!frame) {
        if (trunk.length() < FRAME_HEADER) return undefined;
        const header = trunk.take(FRAME_HEADER);
        frame = { connection: header.readUInt32BE(0), left: header.readUInt32BE(4) };
        if (frame.left > LARGEST_FRAME) return `a frame of ${frame.left} bytes`;
        if (frame.connection !== PLUGIN_CONNECTION && frame.connection !== RUNTIME_CONNECTION)
          return `a frame of connection ${frame.connection}`;
      }
      const now = Math.min(frame.left, trunk.length());
      if (now > 0) {
        const connection = connections.get(frame.connection) ?? createConnection(frame.connection);
        connections.set(frame.connection, connection);
        const bad = connection.push(trunk.take(now), messages);
        if (bad !== undefined) return bad;
        frame.left -= now;
      }
      if (frame.left > 0) return undefined;
      frame = undefined;
    }
  };

  return {
    push(piece) {
      const messages: Message[] = [];
      trunk.push(piece);
      wrong ??= deliver(messages);
      return wrong === undefined ? { messages } : { messages, wrong };
    },
  };
}

function createConnection(connection: number) {
  const bytes = createQueue();
  let header: { readonly stream: number; readonly type: number; readonly length: number } | undefined;
  return {
    push(piece: Buffer, messages: Message[]): string | undefined {
      bytes.push(piece);
      for (;;) {
        if (!header) {
          if (bytes.length() < MESSAGE_HEADER) return undefined;
          const text = bytes.take(MESSAGE_HEADER);
          header = { length: text.readUInt32BE(0), stream: text.readUInt32BE(4), type: text.readUInt8(8) };
          if (header.length > LARGEST_MESSAGE) return `a message of ${header.length} bytes`;
        }
        if (bytes.length() < header.length) return undefined;
        const { stream, type, length } = header;
        messages.push({ connection, stream, type, payload: bytes.take(length) });
        header = undefined;
      }
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
