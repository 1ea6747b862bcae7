// Menus behind a button: they close when the focus leaves, with Escape, and when something outside is clicked.

/** @param {HTMLDetailsElement} menu */
export function dismissable(menu) {
  const close = () => {
    menu.open = false;
  };
  menu.addEventListener("focusout", (event) => {
    if (event.relatedTarget instanceof Node && !menu.contains(event.relatedTarget)) close();
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    // Inside a dialog this key closes the menu alone.
    event.preventDefault();
    event.stopPropagation();
    close();
    menu.querySelector("summary")?.focus();
  });
  const outside = (/** @type {MouseEvent} */ event) => {
    if (event.target instanceof Node && !menu.contains(event.target)) close();
  };
  menu.addEventListener("toggle", () => {
    if (menu.open) document.addEventListener("mousedown", outside);
    else document.removeEventListener("mousedown", outside);
  });
  return menu;
}
