// The wire between the agent's two halves: frames of a length, a kind, a number and so many bytes. Owns cutting and joining, and that
// no frame is longer than its reader allows; what frames say is in protocol.ts.

export type Frame = {
  readonly kind: number;
  /** An answer has that of its request; what nobody asked for has 0. */
  readonly id: number;
  /** In a buffer of its own, which may be given away. */
  readonly payload: Uint8Array<ArrayBuffer>;
};

/** Length of the payload and number, both 32 bits with the highest byte first, and between them the kind, 8 bits. */
const HEADER = 9;

export function frameOf(kind: number, id: number, payload: string | Uint8Array = ''): Buffer {
  const length = typeof payload === 'string' ? Buffer.byteLength(payload) : payload.byteLength;
  const frame = Buffer.allocUnsafe(HEADER + length);
  frame.writeUInt32BE(length, 0);
  frame.writeUInt8(kind, 4);
  frame.writeUInt32BE(id, 5);
  if (typeof payload === 'string') frame.write(payload, HEADER);
  else frame.set(payload, HEADER);
  return frame;
}

export type FrameParser = {
  /** Frames that are complete with this piece. After `wrong` nothing more can be read. */
  push(piece: Buffer): { readonly frames: readonly Frame[]; readonly wrong?: string };
};

/** `mostBytes`: of a frame's payload. Room is made for a payload when its header has come, once. */
export function createFrameParser(mostBytes: number): FrameParser {
  const header = Buffer.alloc(HEADER);
  let headerBytes = 0;
  let payload: Uint8Array<ArrayBuffer> | undefined;
  let payloadBytes = 0;
  let wrong: string | undefined;
  return {
    push(piece) {
      const frames: Frame[] = [];
      let at = 0;
      while (wrong === undefined) {
        if (!payload) {
          const taken = piece.copy(header, headerBytes, at, at + HEADER - headerBytes);
          at += taken;
          headerBytes += taken;
          if (headerBytes < HEADER) break;
          const length = header.readUInt32BE(0);
          if (length > mostBytes) {
            wrong = `a frame of ${length} bytes; at most ${mostBytes} are read`;
            break;
          }
          payload = new Uint8Array(new ArrayBuffer(length));
          payloadBytes = 0;
        }
        const part = piece.subarray(at, at + payload.byteLength - payloadBytes);
        payload.set(part, payloadBytes);
        at += part.byteLength;
        payloadBytes += part.byteLength;
        if (payloadBytes < payload.byteLength) break;
        frames.push({ kind: header.readUInt8(4), id: header.readUInt32BE(5), payload });
        payload = undefined;
        headerBytes = 0;
      }
      return wrong === undefined ? { frames } : { frames, wrong };
    },
  };
}
