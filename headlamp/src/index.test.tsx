import { fireEvent, render, screen } from '@testing-library/react';
import React from 'react';
import { beforeAll, describe, expect, it, vi } from 'vitest';
import { origin } from './index';

const ADDRESS = 'http://127.0.0.1:8097/abcdefghijklmnopqrstuvwxyz/';
const registered = vi.hoisted(() => ({ section: (() => null) as (props: any) => any, settings: null as any }));
const copied = vi.fn();

vi.mock('@kinvolk/headlamp-plugin/lib', () => ({
  ConfigStore: class {
    useConfig() {
      return () => ({ address: ADDRESS });
    }
  },
  registerDetailsViewSection: (section: any) => (registered.section = section),
  registerPluginSettings: (_: string, settings: any) => (registered.settings = settings),
}));
vi.mock('@kinvolk/headlamp-plugin/lib/CommonComponents', () => ({
  SectionBox: (props: any) => <section aria-label={props.title}>{props.children}</section>,
  NameValueTable: (props: any) => props.rows.map((row: any) => <p key={row.name}>{`${row.name}: ${row.value}`}</p>),
}));

beforeAll(() => {
  const answer = {
    clear: false,
    lines: ['pod ml/a would fit 0 of 5 nodes', '<img src=x onerror=alert(1)>'],
    more_lines: 0,
    fixes: [{ node: 'n1', text: 'uncordon the node' }],
    command: 'kubectl dra why pod/a -n ml',
    error: '',
  };
  vi.stubGlobal('fetch', async () => new Response(JSON.stringify(answer)));
  Object.assign(navigator, { clipboard: { writeText: copied } });
});

function shown(kind: string, spec: object) {
  const resource = { kind, metadata: { namespace: 'ml', name: 'a' }, jsonData: { spec } };
  return registered.section({ resource });
}

describe('the section', () => {
  it.each([
    ['Pod', { resourceClaims: [{ name: 'gpu' }], nodeName: 'n1' }, true],
    ['Pod', {}, true],
    ['Pod', { nodeName: 'n1' }, false],
    ['Deployment', { resourceClaims: [{ name: 'gpu' }] }, false],
  ])('of a %s with %j', (kind, spec, expected) => expect(shown(kind, spec) !== null).toBe(expected));

  it('shows causes and fixes as text, and copies them', async () => {
    const { container } = render(shown('Pod', {}));
    expect(await screen.findByText('uncordon the node: then it fits on n1')).toBeTruthy();
    expect(container.querySelector('pre')?.textContent).toContain('pod ml/a would fit 0 of 5 nodes');
    expect(container.querySelector('img')).toBeNull();
    fireEvent.click(screen.getByText('Copy the command'));
    expect(copied).toHaveBeenLastCalledWith('kubectl dra why pod/a -n ml');
    fireEvent.click(screen.getByText('Copy the answer'));
    expect(copied.mock.lastCall?.[0]).toContain('0 of 5 nodes');
  });
});

describe('the settings', () => {
  it.each([
    ['https://headlamp.example.com', 'https://headlamp.example.com'],
    ['file://', 'null'],
    ['null', 'null'],
  ])('name the origin of a page at %s', (there, expected) => expect(origin({ origin: there })).toBe(expected));

  it('mark an address of another host as wrong', () => {
    const onDataChange = vi.fn();
    render(<registered.settings data={{ address: 'https://example.com/' }} onDataChange={onDataChange} />);
    const field = screen.getByRole('textbox');
    expect(field.getAttribute('aria-invalid')).toBe('true');
    fireEvent.change(field, { target: { value: ` ${ADDRESS} ` } });
    expect(onDataChange).toHaveBeenCalledWith({ address: ADDRESS });
  });
});
