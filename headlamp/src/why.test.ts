import { afterEach, describe, expect, it, vi } from 'vitest';
import { Answer, ask, asText, isAddress } from './why';

const ADDRESS = 'http://127.0.0.1:8097/abcdefghijklmnopqrstuvwxyz/';
const ANSWER: Answer = {
  clear: false,
  lines: ['pod ml/a would fit 0 of 5 nodes', 'on n1: uncordon the node'],
  more_lines: 0,
  fixes: [{ node: 'n1', text: 'uncordon the node' }],
  command: 'kubectl dra why pod/a -n ml',
  error: '',
};

afterEach(() => vi.unstubAllGlobals());

/** A server that gives every question this answer. */
function answering(make: () => Response) {
  const fetched = vi.fn(async (url: string) => (url ? make() : make()));
  vi.stubGlobal('fetch', fetched);
  return fetched;
}

describe('the address', () => {
  it.each([
    [ADDRESS, true],
    ['http://localhost:1/abcdefghijklmnopqrstuvwxyz/', true],
    ['http://127.0.0.1:8097/', false],
    ['http://127.0.0.1.example.com:80/abcdefghijklmnopqrstuvwxyz/', false],
    ['http://127.0.0.1:8097/abcdefghijklmnopqrstuvwxyz/?x=/', false],
    ['https://example.com/abcdefghijklmnopqrstuvwxyz/', false],
    ['javascript:alert(1)', false],
  ])('%s', (text, expected) => expect(isAddress(text)).toBe(expected));
});

describe('the question', () => {
  it('names the pod, and gives the answer back', async () => {
    const fetched = answering(() => new Response(JSON.stringify(ANSWER)));
    expect(await ask(ADDRESS, 'ml/a')).toEqual(ANSWER);
    expect(fetched.mock.calls[0][0]).toBe(`${ADDRESS}api/why?kind=pod&key=ml%2Fa`);
  });

  it('asks nobody without an address', async () => {
    const fetched = answering(() => new Response('{}'));
    await expect(ask('https://example.com/', 'ml/a')).rejects.toThrow('settings');
    expect(fetched).not.toHaveBeenCalled();
  });

  it.each([
    [404, 'x', 'does not know this pod'],
    [403, 'open the address that kubectl dra ui printed\n', 'open the address'],
    [503, '', 'answered 503'],
  ])('says what a refusal means: %i', async (status, text, words) => {
    answering(() => new Response(text, { status }));
    await expect(ask(ADDRESS, 'ml/a')).rejects.toThrow(words);
  });

  it('says what to start if nobody answers', async () => {
    answering(() => {
      throw new TypeError('Failed to fetch');
    });
    await expect(ask(ADDRESS, 'ml/a')).rejects.toThrow('--allow-origin');
  });
});

describe('the text for the clipboard', () => {
  it('has the lines, and says how many are left out', () => {
    expect(asText(ANSWER)).toBe('pod ml/a would fit 0 of 5 nodes\non n1: uncordon the node');
    expect(asText({ ...ANSWER, more_lines: 7 })).toContain('7 more lines');
  });

  it('begins with why it may be old', () => {
    expect(asText({ ...ANSWER, error: 'no route to host' })).toMatch(/^The cluster could not be read.*no route to host\npod/);
  });
});
